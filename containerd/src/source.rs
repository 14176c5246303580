//! The text of a configuration file.

use std::path::PathBuf;

use toml_edit::DocumentMut;

use crate::error::Error;

/// A configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Path of the file, for messages and to resolve relative imports.
    pub path: PathBuf,
    /// Text of the file.
    pub text: String,
}

impl Source {
    /// Returns a file with this path and text.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    pub(crate) fn parse(&self) -> Result<DocumentMut, Error> {
        self.text.parse().map_err(|source| Error::Syntax { path: self.path.display().to_string(), source: Box::new(source) })
    }
}
