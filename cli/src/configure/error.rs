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
    #[error("{}: {what}", path.display())]
    Shape { path: PathBuf, what: String },
    #[error("{} was not written by vgpu; move it away first", .0.display())]
    NotOurs(PathBuf),
    #[error("{what} is not an absolute path of plain characters: {}", path.display())]
    Path { what: &'static str, path: PathBuf },
    #[error("{0} has no hooks.d; it is configured without --hooks")]
    NoHooks(&'static str),
}
