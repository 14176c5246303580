//! The two files that a container's processes share with the host.
//!
//! * [`limits`]: the limits page, written by the host and mapped read-only in the container.
//! * [`region`]: the accounting file, read-write for the container's processes: what they hold and have used. The tenant can write anything
//!   into it; the host validates it, and no other container's limit depends on it.
//!
//! The crate has no `std`, because it is part of `libvgpu.so`, inside the tenants' processes. It takes no locks that a killed process could
//! leave behind: [`ledger`] has the argument.
#![cfg_attr(not(test), no_std)]

pub mod budget;
#[cfg(test)]
#[path = "budget/tests.rs"]
mod budget_tests;
pub mod ledger;
pub mod limits;
pub mod map;
pub mod paths;
pub mod region;
mod sync;
pub mod trace;
pub mod uuid;

/// Most GPUs for which one container can have limits and accounts.
pub const MAX_GPUS: usize = 16;
