//! The few types and constants of CUDA's driver interface and of NVML that vgpu touches. Everything else is opaque.
//!
//! They are declared here because the crates that have them need `std`. The tests compare every one with those crates.
#![cfg_attr(not(test), no_std)]

pub mod copies;
pub mod cuda;
pub mod descriptors;
pub mod nvml;
