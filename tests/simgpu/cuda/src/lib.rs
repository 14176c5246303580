//! The simulated GPU's `libcuda.so.1`: a test double that answers as NVIDIA's driver 580 does on an H200, as far as our tests look.
//!
//! Every exported function is written once, in the module of its subject, with the `api!` macro.

#[macro_use]
mod api;
mod context;
mod copy;
mod device;
mod driver;
mod errors;
mod ffi;
mod graph;
mod green_context;
mod handles;
mod launch;
mod limits;
mod memory;
mod module;
mod proc_address;
mod stream;
mod unsupported;
