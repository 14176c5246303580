//! The compute limiter: holds launches back so that a container uses no more of a GPU's time than its limit.
//!
//! The crate depends on neither CUDA nor NVML; the [`engine::Engine`] trait is its view of them. The tests in `sim` run it on a simulated GPU
//! with a deterministic clock.
//!
//! | module | what it does |
//! |---|---|
//! | [`launch`], `prepare`, `fast_path` | the path of a launch; launches that do not read the clock |
//! | `admission` | the wait of a launch, and how much budget ends it |
//! | [`account`], [`turns`] | the container's budget in this process; the arbiter's turns |
//! | [`cost_model`] | the expected cost of each kind of launch |
//! | [`stream`], `batch`, [`batch_close`] | a stream's launches in batches, each closed by an event |
//! | [`meter`], `timeline`, `charge`, `off_times` | the measured time of batches, and what is charged for it |
//! | `gang_phase`, `idle_gaps` | streams side by side |
//! | `power` | clock compensation |
//! | `tuning` | constants of several modules |
//!
//! Times and durations are nanoseconds. Times of the host are those of [`engine::Engine::now`]; positions on a GPU's timeline have an arbitrary
//! origin. Names of durations end in `_ns`.
#![cfg_attr(not(test), no_std)]

pub mod account;
mod admission;
mod batch;
pub mod batch_close;
mod charge;
pub mod cost_model;
pub mod engine;
mod fast_path;
mod gang_phase;
mod idle_gaps;
pub mod launch;
pub mod meter;
pub mod off_times;
mod power;
mod prepare;
pub mod stream;
mod timeline;
pub mod tuning;
pub mod turns;

#[cfg(test)]
mod sim;
