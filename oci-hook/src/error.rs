//! One error for both binaries. Each message is one line.

use std::io;
use std::path::{Path, PathBuf};

use vgpu_config::error::one_line;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a container does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What it asks for, or what the operator says, cannot be followed.
    #[error(transparent)]
    Config(#[from] vgpu_config::Error),
    /// Something on the host, or in the bundle, cannot be used.
    #[error("cannot {action} {}: {source}", shown(path))]
    Io {
        /// What was tried, as in "cannot … the path".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A path inside the container's image leads elsewhere.
    #[error("{} in the container's image is {found}: accepted is {accepted}", shown(path))]
    Image {
        /// The path as seen in the container.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What it has to be.
        accepted: &'static str,
    },
    /// A value that cannot be used.
    #[error("{what}=\"{}\": accepted is {accepted}", one_line(value))]
    Refused {
        /// What has the value.
        what: &'static str,
        /// The value.
        value: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// Anything else that one sentence says best.
    #[error("{0}")]
    Other(String),
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

impl Error {
    /// For `map_err`: what was tried on which path.
    pub fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source: source.into() }
    }

    /// A value that cannot be used.
    pub fn refused(what: &'static str, value: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self::Refused { what, value: value.into(), accepted: accepted.into() }
    }
}
