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
        write!(out, "{origin} {}: \"{}\"", one_line(&self.key), quoted(&self.value))
    }
}

/// Most characters of a text of unknown length that a message has.
const MAX_CHARS: usize = 120;

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

/// Returns `text` with control characters escaped, so that it cannot break or forge a log line.
pub fn escaped(text: &str) -> String {
    text.chars().map(|c| if matches!(c, '"' | '\'') { c.to_string() } else { c.escape_debug().to_string() }).collect()
}

/// Returns `text` with control characters escaped, and cut after 120 characters.
pub fn one_line(text: &str) -> String {
    cut(text, escaped)
}

/// Returns `text` as [`one_line`] does, but for use between quotation marks, so that it cannot end them.
pub fn quoted(text: &str) -> String {
    cut(text, |start| start.escape_debug().to_string())
}

fn cut(text: &str, escape: impl Fn(&str) -> String) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => escape(&text[..end]) + "…",
        None => escape(text),
    }
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
        assert_eq!((one_line("a \"b\"\n"), quoted("a \"b\"")), (r#"a "b"\n"#.to_owned(), r#"a \"b\""#.to_owned()));
    }
}
