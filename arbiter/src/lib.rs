//! The arbiter: decides how the containers that share a GPU share its time.
//!
//! The GPU takes the channel groups that have work in turn, each for its time slice, and switches in the middle of kernels, which costs .2 ms.
//! Long slices of busy tenants are long waits for one that works now and then; short ones waste the GPU on switching. So of the tenants that
//! are always busy only one is on the GPU at a time, in turns of tens of milliseconds, and with a short slice while somebody else works now
//! and then. `tests/gpu/results/hardware-scheduler.md` has the measurements.
//!
//! * [`scheduler`] decides which tenant is next and for how long. It uses neither files nor a clock of its own, so its tests are exact.
//! * [`residency`] decides whose memory is on a GPU that has less than was promised.
//! * [`tenant`] is one container on one GPU, through its limits page, which it cannot write, and its region, which it can.
//! * [`service`] finds the containers, sleeps, and runs one scheduler for each GPU.
//!
//! The constants of time are in `vgpu_gpu_limiter::tuning`, those of memory in `residency/tuning.rs`.
//!
//! Nothing depends on the arbiter: a tenant that does not hear from it for a tenth of a second continues within its limit. The arbiter
//! depends on no tenant: one that does not leave the GPU is skipped after [`tenant::DRAIN_TIMEOUT_US`], and its region is read as its own
//! claim.

pub mod residency;
pub mod scheduler;
pub mod service;
pub mod tenant;
