//! The arbiter: gives turns to the containers that share a GPU, weighted by their compute limits.
//!
//! The driver's time slicing between processes loses about a tenth of the GPU. Turns of ten milliseconds and more lose one or two
//! hundredths, as handing the GPU over costs about 100 µs. During a tenant's turn the other tenants launch nothing.
//!
//! * [`scheduler`] decides which tenant is next and for how long. It uses neither files nor a clock of its own, so its tests are exact.
//! * [`tenant`] is one container on one GPU, through its limits page, which it cannot write, and its region, which it can.
//! * [`service`] finds the containers, sleeps, and runs one scheduler for each GPU.
//!
//! Nothing depends on the arbiter: a tenant that does not hear from it for a tenth of a second continues within its limit. The arbiter
//! depends on no tenant: one that does not yield is skipped after [`scheduler::DRAIN_TIMEOUT_US`], and its region is read as its own claim.

pub mod scheduler;
pub mod service;
pub mod tenant;
