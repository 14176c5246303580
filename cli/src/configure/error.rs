//! Errors of `vgpu configure`.

use std::path::PathBuf;

/// Why a runtime cannot be configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    File(#[from] crate::file_change::FileError),
    #[error(transparent)]
    Containerd(#[from] vgpu_containerd::Error),
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", path.display())]
    Toml { path: PathBuf, source: Box<toml_edit::TomlError> },
    #[error("{}: {key}: expected an object", path.display())]
    NotAnObject { path: PathBuf, key: &'static str },
    #[error("{} was not written by vgpu; move it to another folder first", .0.display())]
    NotManaged(PathBuf),
    #[error("{option}: \"{}\": expected an absolute path without quotes, backslashes and control characters", path.display())]
    Path { option: &'static str, path: PathBuf },
    #[error("{0} has no hooks.d; omit --hooks")]
    NoHooks(&'static str),
}
