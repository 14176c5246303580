//! `libcuda.so.1` of the simulated GPU: a test double that behaves as NVIDIA's driver 580 does on an H200, as far as the tests need.
//! A copy plays another driver (`face.py`).
//!
//! Every exported function is defined once, in the module of its subject, with the `api!` macro.

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
mod newer;
mod objects;
mod proc_address;
mod rm;
mod stream;
mod unsupported;
