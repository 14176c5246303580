//! The error type of both programs. Each message is one line.

use std::io;
use std::path::{Path, PathBuf};

use vgpu_config::error::{one_line, quoted};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reasons for which a container is not started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request or the policy is invalid.
    #[error(transparent)]
    Config(#[from] vgpu_config::Error),
    /// An operation on a file of the host or the bundle failed.
    #[error("cannot {action} {}: {source}", display(path))]
    Io {
        /// The operation, as in "cannot … the path".
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A path inside the container's image is not usable.
    #[error("{} in the container's image is {found}: expected {expected}", display(path))]
    Image {
        /// The path in the container.
        path: PathBuf,
        /// What was found.
        found: &'static str,
        /// What was expected.
        expected: &'static str,
    },
    /// A value is not accepted.
    #[error("{key}: \"{}\": expected {expected}", quoted(value))]
    Refused {
        /// The name of the value.
        key: &'static str,
        /// The value.
        value: String,
        /// The accepted values.
        expected: String,
    },
    /// Any other reason, as a complete message.
    #[error("{0}")]
    Other(String),
}

fn display(path: &Path) -> String {
    one_line(&path.display().to_string())
}

impl Error {
    /// Returns a closure for `map_err` that wraps the error of an operation on `path`.
    pub fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source: source.into() }
    }

    /// Returns the error for a value that is not accepted.
    pub fn refused(key: &'static str, value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Refused { key, value: value.into(), expected: expected.into() }
    }
}
