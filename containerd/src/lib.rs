//! Registers vgpu's runtime with containerd: text in, text out, nothing read or written here.
//!
//! containerd merges the files that its `imports` list names, so vgpu owns one drop-in and touches the main file in
//! one place only. Two facts shape what is in the drop-in:
//!
//! - containerd 1.x merges by plugin, not by key: a drop-in that names a plugin *replaces* that plugin's whole section
//!   (`mergeConfig`: "Replace entire sections instead of merging map's values",
//!   <https://github.com/containerd/containerd/blob/v1.7.24/services/server/config/config.go#L355>). So for
//!   configuration version 2 the section as it stands is copied, and the handler added to the copy. It also forgets the
//!   built-in `runc` handler as soon as any handler is named. containerd 2.x merges by key, and the copy is harmless.
//! - A drop-in may not have a higher version than the main file
//!   (<https://github.com/containerd/containerd/blob/main/cmd/containerd/server/config/config.go>).

mod cri;
mod drop_in;
mod imports;
mod inspect;
mod main_file;
mod version;

pub use drop_in::{Handler, MARK, is_ours, render};
pub use imports::{Pattern, covers, patterns};
pub use inspect::{Registration, Trouble, inspect};
pub use main_file::{Edited, attach, detach};
pub use version::Version;

/// Pod annotations that reach the bundle: vgpu's and HAMi's requests, HAMi's and Volcano's decisions.
/// containerd matches with Go's `path.Match`, whose `*` stops at `/`.
pub const POD_ANNOTATIONS: [&str; 5] = ["nvidia.com/*", "hami.io/*", "volcano.sh/*", "gpu-fraction*", "gpu-memory"];

/// Container annotations that reach the bundle.
pub const CONTAINER_ANNOTATIONS: [&str; 5] = POD_ANNOTATIONS;

/// Why a containerd configuration cannot be worked with. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not TOML.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: String,
        /// Where and what.
        source: Box<toml_edit::TomlError>,
    },
    /// A version that has no fully qualified plugin names, or one that is not known yet.
    #[error("{path}: configuration version {version} is not supported; write it as version 2, 3 or 4 first (containerd config migrate)")]
    Version {
        /// The file.
        path: String,
        /// What the file says; 1 where it says nothing.
        version: String,
    },
    /// A key has another type than containerd gives it.
    #[error("{path}: {key} is not {expected}")]
    Type {
        /// The file.
        path: String,
        /// The key, dotted.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// One configuration file as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where it lies; used in messages and to resolve relative imports.
    pub path: std::path::PathBuf,
    /// What it says.
    pub text: String,
}

impl Source {
    /// A file and its text.
    pub fn new(path: impl Into<std::path::PathBuf>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    fn parse(&self) -> Result<toml_edit::DocumentMut, Error> {
        self.text.parse().map_err(|source| Error::Syntax { path: self.path.display().to_string(), source: Box::new(source) })
    }
}
