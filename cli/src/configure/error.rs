//! Errors of `vgpu configure`.

use std::path::PathBuf;

/// Why a runtime cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] crate::file_change::FileError),
    /// containerd's configuration cannot be used.
    #[error(transparent)]
    Containerd(#[from] vgpu_containerd::Error),
    /// A file is not JSON.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: serde_json::Error,
    },
    /// The editor of JSON texts refuses a file.
    #[error("{}: {source}", path.display())]
    JsonEdit {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: jsonc_parser::errors::ParseError,
    },
    /// A JSON object has several keys of one name.
    #[error("{}: expected each key once", path.display())]
    RepeatedKey {
        /// The file.
        path: PathBuf,
    },
    /// A file is not TOML.
    #[error("{}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: Box<toml_edit::TomlError>,
    },
    /// A key has another type than an object.
    #[error("{}: {key}: expected an object", path.display())]
    NotAnObject {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A key has another type than a string.
    #[error("{}: {key}: expected a string", path.display())]
    NotAString {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A file at the path of vgpu's own was not written by vgpu.
    #[error("{} was not written by vgpu; move it to another folder first", .0.display())]
    NotManaged(PathBuf),
    /// A path cannot be written into a configuration file.
    #[error("{option}: \"{}\": expected an absolute path without quotes, backslashes and control characters", path.display())]
    Path {
        /// The option.
        option: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// The runtime of this name reads no hooks.d.
    #[error("{0} has no hooks.d; omit --hooks")]
    NoHooks(&'static str),
}
