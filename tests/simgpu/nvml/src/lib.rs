//! `libnvidia-ml.so.1` of the simulated GPU: a test double of NVIDIA's management library with the functions that the tests and programs
//! like `nvidia-smi` use. Every call is counted in the shared state, so that tests can check the number of calls.

#[macro_use]
mod api;
mod device;
mod memory;
mod processes;
mod system;
mod utilization;
