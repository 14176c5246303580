//! `vgpu-runtime` and `vgpu-hook`: put a container's limits into its OCI bundle.
//!
//! [`runtime`] is an OCI runtime in front of another one. It reads the [`bundle`], decides the limits ([`mod@plan`]), writes the
//! container's directory on the host ([`state`]), and edits the specification ([`mod@edits`], [`apply`]). [`hook`] mounts the files
//! ([`mounts`]) inside the container's [`rootfs`]. Where no runtime can be put in front of another, [`hook`] does all of it alone.

pub mod apply;
pub mod argv;
pub mod bundle;
pub mod driver;
pub mod edits;
pub mod engine;
pub mod error;
pub mod hami_cache;
pub mod hook;
pub mod injected;
mod journal;
pub mod library;
pub mod log;
pub mod mounts;
pub mod path;
pub mod persistent;
pub mod plan;
pub mod preload_list;
pub mod prepare;
pub mod privilege;
pub mod process;
pub mod record;
pub mod rootfs;
pub mod runtime;
pub mod seccomp;
pub mod spec;
pub mod state;
mod warnings;

pub use error::{Error, Result};
