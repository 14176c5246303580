//! Services of the kernel and the C library: clocks, sleep, memory, locks, log lines.

pub mod cgroup;
pub mod clock;
pub mod errno;
pub mod futex;
pub mod list;
pub mod lock;
pub mod log;
pub mod mmap;
pub mod tsc;
