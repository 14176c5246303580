//! The error type. Each message is one line that names the key, the value, and what was expected.

use std::fmt;
use std::path::PathBuf;

use crate::setting::{Origin, Setting};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Setting {
    /// Returns the error that refuses this value, with `expected` completing "expected ...".
    pub fn refused(&self, expected: impl Into<String>) -> Error {
        Error::Refused { setting: self.clone(), expected: expected.into() }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            Origin::Annotation => "annotation",
            Origin::Environment => "environment variable",
            Origin::File => "file",
        };
        write!(out, "{origin} {}: \"{}\"", one_line(&self.key), one_line(&self.value))
    }
}

/// An invalid request or configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value that is not accepted.
    #[error("{setting}: expected {expected}")]
    Refused {
        /// The setting.
        setting: Setting,
        /// The accepted values.
        expected: String,
    },
    /// The operator's policy does not let this container start.
    #[error("{0}")]
    Policy(String),
    /// The policy file or the inventory cannot be read.
    #[error("cannot read {}: {source}", one_line(&path.display().to_string()))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The content of the policy file or the inventory is invalid.
    #[error("{}: {why}", one_line(&path.display().to_string()))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason, with its position.
        why: String,
    },
    /// Fewer GPUs match than were requested.
    #[error("{setting}: {matching}; the container may use {available}")]
    Devices {
        /// The setting that requests them.
        setting: Setting,
        /// The number of GPUs that match, in words.
        matching: String,
        /// The GPUs to choose from.
        available: String,
    },
}

/// Returns `text` with control characters escaped, so that it cannot break or forge a log line, and cut after 120 characters.
pub fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 120;
    let mut line: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line() {
        let setting = Setting::annotation("nvidia.com/gpumem", "1\nlevel=info \u{1b}[2J\"");
        let message = setting.refused("a number of MiB").to_string();
        assert_eq!(message, r#"annotation nvidia.com/gpumem: "1\nlevel=info \u{1b}[2J\"": expected a number of MiB"#);
        assert!(one_line(&"x".repeat(5000)).chars().count() <= 121);
    }
}
