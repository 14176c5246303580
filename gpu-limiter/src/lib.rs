//! The compute limiter: holds launches back so that a container uses no more of a GPU's time than its limit.
//!
//! The crate knows neither CUDA nor NVML: what it needs of them is the [`engine::Engine`] trait. The tests in `sim` run it on a simulated
//! GPU with a deterministic clock.
//!
//! * [`launch`]: what happens around every launch. [`fast_path`]: launches that do not ask for the time. [`admission`]: where a launch waits.
//! * [`account`]: the container's budget in this process. [`cost_model`]: what a launch will probably take. [`turns`]: the arbiter's turns.
//! * [`stream`]: a stream's launches in batches. [`batch_close`]: where a batch ends. [`meter`]: what finished batches took, on the GPU's
//!   [`timeline`]; [`charge`]: what of that is charged.
#![cfg_attr(not(test), no_std)]

pub mod account;
pub mod admission;
pub mod batch_close;
pub mod charge;
pub mod cost_model;
pub mod engine;
pub mod fast_path;
pub mod gang_phase;
pub mod host_bound;
pub mod idle_gaps;
pub mod launch;
pub mod meter;
pub mod power;
pub mod stream;
pub mod timeline;
pub mod tuning;
pub mod turns;
pub mod wake_cost;

#[cfg(test)]
mod sim;
