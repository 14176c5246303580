//! Runs real containers with limited GPUs: shared code of the end-to-end tests, the demonstration and the run on a real GPU.
//!
//! A [`Kit`] is the build under test. A [`Machine`] has the GPUs, simulated or real. Containers run through a
//! [`vgpu_test_harness::Host`], in one of several [`Way`]s.

mod browser;
mod detached;
mod escapes;
mod fleet;
mod kit;
mod loads;
mod machine;
mod monitor;
mod output;
pub mod process;
mod running;
mod seed;
pub mod trace;
mod way;

pub use browser::Browser;
pub use detached::start_detached;
pub use escapes::escapes;
pub use fleet::{Fleet, Starts, median};
pub use kit::Kit;
pub use loads::{Load, loads};
pub use machine::{Machine, PROGRAMS, Watch};
pub use monitor::{Monitor, environment as vgpu_environment};
pub use output::{Fill, Held, Oversub};
pub use running::Running;
pub use seed::seed;
pub use way::{Way, host, hosts};

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// The ordinary methods to allocate device memory, by the names that the program `fill` has for them.
pub const ALLOCATION_METHODS: [&str; 10] =
    ["cuMemAlloc", "pitch", "managed", "async", "frompool", "vmm", "array", "array3d", "mipmap", "graph"];
