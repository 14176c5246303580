//! The simulated GPU: a file mapped by every process that uses it.
//!
//! What a real GPU and its kernel driver keep between processes is kept here: how much memory each process holds, who is running, and
//! until when. A process that dies gives everything back, because all that it owns hangs on a lock that the kernel releases.
#![warn(missing_docs)]

pub mod config;
mod device;
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
