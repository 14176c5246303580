//! `vgpu-runtime` and `vgpu-hook`: put a container's limits into its OCI bundle.
//!
//! The way of a container through here: its [`bundle`] is read, [`mod@plan`] says what has to change, [`state`] writes what the
//! container is given on the host, [`apply`] changes the bundle. [`runtime`] does that as an OCI runtime in front of another
//! one; [`hook`] does the same by OCI hooks alone. Either way it is the hook that mounts, with its own hands ([`mounts`]), inside
//! the [`rootfs`].

pub mod apply;
pub mod argv;
pub mod bundle;
pub mod driver;
pub mod edits;
pub mod error;
pub mod escape;
pub mod hami;
pub mod hook;
pub mod injected;
pub mod log;
pub mod mounts;
pub mod path;
pub mod plan;
pub mod preload_list;
pub mod prepare;
pub mod process;
pub mod record;
pub mod rootfs;
pub mod runtime;
pub mod spec;
pub mod state;

pub use error::{Error, Result};

/// Both programs live for a millisecond: musl's own allocator spends a good part of that on asking the kernel for memory and giving
/// it back.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
