//! The error type.

/// Reasons for which a containerd configuration cannot be edited. Each message says what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not TOML.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: String,
        /// The position and the reason.
        source: Box<toml_edit::TomlError>,
    },
    /// The version has no fully qualified plugin names, or is not known.
    #[error("{path}: configuration version {version}: expected version 2, 3 or 4 (convert the file with containerd config migrate)")]
    Version {
        /// The file.
        path: String,
        /// The version in the file; 1 if the file has none.
        version: String,
    },
    /// A key has another type than in containerd.
    #[error("{path}: {key}: expected {expected}")]
    Type {
        /// The file.
        path: String,
        /// The dotted key.
        key: String,
        /// The expected type.
        expected: &'static str,
    },
}
