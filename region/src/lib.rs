//! What one container's processes and the host side share, as two files.
//!
//! * [`limits`]: one page, written by the host, mapped read-only in the container: what the container may have.
//! * [`region`]: the accounting file, read-write for the container's processes: what they hold and used. Whatever is in it was
//!   written by the tenant; the host side reads it with care and never depends on it for anyone else's limit.
//!
//! The crate has no `std`, because it lives in `libvgpu.so`, inside other people's processes. It takes no locks that a killed
//! process could leave behind: see [`ledger`] for the argument.
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

/// Most GPUs one container can have limits for and accounts of.
pub const MAX_GPUS: usize = 16;
