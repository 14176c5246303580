//! State of the simulated GPU: a file that every process that uses it maps.
//!
//! The file holds what a real GPU and its kernel driver share between processes: the memory of each process, the process that runs
//! now, and until when. All resources of a process depend on a file lock that the kernel releases, so they are reclaimed when it dies.
#![warn(missing_docs)]

pub mod config;
mod controls;
mod device;
pub mod face;
mod futex;
mod identity;
mod layout;
mod locks;
mod memory;
mod processes;
mod robust_mutex;
mod scheduler;
mod slot;
mod utilization;

pub use config::Config;
pub use device::{Device, default_path};
pub use layout::{MAX_GPUS, MAX_SLOTS};
pub use memory::{GpuMemory, OutOfMemory, Visibility};
pub use processes::Process;
pub use scheduler::{Span, now_ns};
pub use slot::Slot;
