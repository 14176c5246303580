//! Registers vgpu's runtime with containerd. Works on the text of configuration files; reads and writes no files itself.
//!
//! containerd merges the files in its `imports` list, so vgpu has one drop-in of its own and edits the main file in one place only. Two
//! facts determine the content of the drop-in:
//!
//! - containerd 1.x merges by plugin, not by key: a drop-in with a plugin's section *replaces* the whole section of that plugin
//!   (`mergeConfig`: "Replace entire sections instead of merging map's values",
//!   <https://github.com/containerd/containerd/blob/v1.7.24/services/server/config/config.go#L355>). For configuration version 2, the
//!   drop-in therefore has a copy of the current section with the handler added. containerd 1.x also drops the built-in `runc` handler as
//!   soon as any handler is configured. containerd 2.x merges by key, and the copy is harmless.
//! - A drop-in must not have a higher version than the main file
//!   (<https://github.com/containerd/containerd/blob/main/cmd/containerd/server/config/config.go>).

mod cri;
mod drop_in;
mod error;
mod imports;
mod inspect;
mod main_file;
mod source;
mod version;

pub use drop_in::{CONTAINER_ANNOTATIONS, Handler, MARK, POD_ANNOTATIONS, is_ours, render};
pub use error::Error;
pub use imports::{Pattern, covers, patterns};
pub use inspect::{Registration, Trouble, inspect};
pub use main_file::{Edited, attach, detach};
pub use source::Source;
pub use version::Version;
