//! Compares the account with NVML and corrects it.

pub mod dead;
pub mod driver_view;
pub mod frees;
pub mod importers;
pub mod overhead;
pub mod small_arrays;
