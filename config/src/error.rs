//! One error type. Its message is one line that names the key, the value, and what would have been accepted.

use std::fmt;
use std::path::PathBuf;

use crate::setting::{Place, Setting};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Setting {
    /// The error that says this value is refused, and what is accepted instead.
    pub fn refused(&self, accepted: impl Into<String>) -> Error {
        Error::Refused { setting: self.clone(), accepted: accepted.into() }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Place::Annotation => "annotation",
            Place::Environment => "environment variable",
            Place::File => "file",
            Place::Policy => "policy key",
        };
        write!(out, "{place} {}=\"{}\"", one_line(&self.key), one_line(&self.value))
    }
}

/// Everything that can be wrong with what was asked or configured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value that is not among those accepted.
    #[error("{setting}: accepted is {accepted}")]
    Refused {
        /// What was said.
        setting: Setting,
        /// What would have been accepted.
        accepted: String,
    },
    /// The operator's policy does not let this container start.
    #[error("{0}")]
    Policy(String),
    /// The policy file, or the inventory, cannot be read.
    #[error("cannot read {}: {source}", one_line(&path.display().to_string()))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The policy file, or the inventory, does not say what it may say.
    #[error("{}: {why}", one_line(&path.display().to_string()))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        why: String,
    },
    /// Fewer GPUs are suitable than were asked for.
    #[error("{setting}: {suitable} suitable; the container may have {available}")]
    Devices {
        /// What was asked.
        setting: Setting,
        /// How many there are, in words.
        suitable: String,
        /// All that it could choose from.
        available: String,
    },
}

/// `text` without anything that could break or forge a log line, and of bounded length.
pub fn one_line(text: &str) -> String {
    const MOST: usize = 120;
    let mut line: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_was_said() {
        let said = Setting::annotation("nvidia.com/gpumem", "1\nlevel=info \u{1b}[2J\"");
        let message = said.refused("a whole number of MiB").to_string();
        assert_eq!(message, r#"annotation nvidia.com/gpumem="1\nlevel=info \u{1b}[2J\"": accepted is a whole number of MiB"#);
        assert!(one_line(&"x".repeat(5000)).chars().count() <= 121);
    }
}
