//! The simulated GPU's `libnvidia-ml.so.1`: a test double of NVIDIA's management library, as far as our tests and `nvidia-smi`-like
//! programs look. Every call is counted in the shared state, so that tests can say how many were made.

#[macro_use]
mod api;
mod device;
mod memory;
mod processes;
mod system;
mod utilization;
