//! Look-up and calls of the real functions of the driver and NVML.

pub mod by_address;
pub mod dlsym;
pub mod driver;
pub mod elf;
pub mod relocations;
pub mod symbols;
pub mod threads;
pub mod withheld;
