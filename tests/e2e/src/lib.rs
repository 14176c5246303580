//! Real containers, held to their share of a GPU: what the end-to-end tests, the demonstration and the run on a real GPU share.
//!
//! A [`Kit`] is what the build made; a [`Machine`] is where it is tried: the simulated GPU, or a real one. Containers run through a
//! [`vgpu_test_harness::Host`], in one of several [`Way`]s.

mod answer;
mod escapes;
mod kit;
mod loads;
mod machine;
mod running;
pub mod trace;
mod way;

pub use answer::{Fill, Held, Oversub};
pub use escapes::escapes;
pub use kit::Kit;
pub use loads::{Load, loads};
pub use machine::{Machine, PROGRAMS, Watch};
pub use running::Running;
pub use way::{Way, host, hosts};

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// The ordinary ways to allocate device memory, as the program `fill` names them.
pub const WAYS_TO_ALLOCATE: [&str; 10] =
    ["cuMemAlloc", "pitch", "managed", "async", "frompool", "vmm", "array", "array3d", "mipmap", "graph"];
