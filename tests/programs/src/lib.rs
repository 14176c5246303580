//! Shared code of the test programs: CUDA through cudarc's generated bindings, which load `libcuda.so.1` on first use, and NVML.
//! The programs run unmodified on the simulated GPU and on a real one.

pub mod arguments;
pub mod costs;
pub mod crash_report;
pub mod cuda;
pub mod mapping;
pub mod methods;
pub mod nvml;
pub mod ptx;
pub mod random;
pub mod share;
pub mod watch;
