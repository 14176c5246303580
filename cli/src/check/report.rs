//! Findings, and how they are told: to people as lines, to scripts as JSON.

use serde_json::{Value, json};
use std::fmt;

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// Nothing to do, nothing to praise.
    Note,
    /// Works, or is not used here; somebody may want to know.
    Warn,
    /// Containers would not be limited, or would not start.
    Fail,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// What was looked at; the same word for the same thing always.
    pub subject: &'static str,
    /// How good it is.
    pub state: State,
    /// What was found.
    pub says: String,
    /// What to do about it.
    pub todo: Option<String>,
}

/// All findings, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Report(pub Vec<Finding>);

impl Report {
    pub fn ok(&mut self, subject: &'static str, says: impl Into<String>) {
        self.add(subject, State::Ok, says, None);
    }

    pub fn note(&mut self, subject: &'static str, says: impl Into<String>) {
        self.add(subject, State::Note, says, None);
    }

    pub fn warn(&mut self, subject: &'static str, says: impl Into<String>, todo: impl Into<String>) {
        self.add(subject, State::Warn, says, Some(todo.into()));
    }

    pub fn fail(&mut self, subject: &'static str, says: impl Into<String>, todo: impl Into<String>) {
        self.add(subject, State::Fail, says, Some(todo.into()));
    }

    fn add(&mut self, subject: &'static str, state: State, says: impl Into<String>, todo: Option<String>) {
        self.0.push(Finding { subject, state, says: says.into(), todo });
    }

    /// Whether a script may go on.
    pub fn passes(&self, strict: bool) -> bool {
        !self.0.iter().any(|f| f.state == State::Fail || (strict && f.state == State::Warn))
    }

    pub fn json(&self, strict: bool) -> Value {
        let checks: Vec<_> =
            self.0.iter().map(|f| json!({ "check": f.subject, "state": f.state.word(), "says": f.says, "todo": f.todo })).collect();
        json!({ "passes": self.passes(strict), "checks": checks })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|f| f.subject.len()).max().unwrap_or_default();
        for f in &self.0 {
            writeln!(out, "{:<4}  {:<width$}  {}", f.state.word(), f.subject, f.says)?;
            if let Some(todo) = &f.todo {
                writeln!(out, "      {:<width$}  -> {todo}", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_json_and_status_agree() {
        let mut report = Report::default();
        report.ok("kernel", "6.1");
        report.warn("driver", "none", "install one");
        assert_eq!(report.to_string(), "ok    kernel  6.1\nwarn  driver  none\n              -> install one\n");
        assert!(report.passes(false) && !report.passes(true));
        report.fail("library", "missing", "install it");
        assert!(!report.passes(false));
        let json = report.json(false);
        assert_eq!(json["passes"], false);
        assert_eq!(json["checks"][2], json!({"check": "library", "state": "fail", "says": "missing", "todo": "install it"}));
        assert_eq!(json["checks"][0]["todo"], Value::Null);
    }
}
