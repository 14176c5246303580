//! The simulated GPU's `libcuda.so.1`: a test double that answers as NVIDIA's driver 580 does on an H200, as far as our tests look.
//!
//! Every exported function is written once, in the module of its subject, with the `api!` macro.

#[macro_use]
mod api;
mod answer;
mod context;
mod copy;
mod device;
mod driver;
mod errors;
mod graph;
mod green;
mod handles;
mod launch;
mod limits;
mod memory;
mod module;
mod proc_address;
mod refused;
mod stream;
