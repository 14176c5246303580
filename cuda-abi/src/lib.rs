//! Types and constants of CUDA's driver interface and of NVML, as far as vgpu uses them. Everything else is opaque.
//!
//! They are declared here because the crates that have them need `std`. The tests compare each with those crates.
#![cfg_attr(not(test), no_std)]

pub mod copies;
pub mod cuda;
pub mod descriptors;
pub mod nvml;
pub mod resource_manager;
