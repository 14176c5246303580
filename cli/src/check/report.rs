//! Findings, as lines for people and as JSON for scripts.

use serde_json::{Value, json};
use std::fmt;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// As expected.
    Ok,
    /// Information only.
    Note,
    /// Works, or is not used on this machine, but may need attention.
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

/// Line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// Thing that was checked. Scripts rely on these names.
    pub subject: &'static str,
    /// Result of the check.
    pub state: State,
    /// Finding in words.
    pub message: String,
    /// How to correct it.
    pub remedy: Option<String>,
}

/// All findings, in the order of the checks.
#[derive(Debug, Default)]
pub(super) struct Report(pub Vec<Finding>);

impl Report {
    pub fn ok(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(subject, State::Ok, message, None);
    }

    pub fn note(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(subject, State::Note, message, None);
    }

    pub fn warn(&mut self, subject: &'static str, message: impl Into<String>, remedy: impl Into<String>) {
        self.add(subject, State::Warn, message, Some(remedy.into()));
    }

    pub fn fail(&mut self, subject: &'static str, message: impl Into<String>, remedy: impl Into<String>) {
        self.add(subject, State::Fail, message, Some(remedy.into()));
    }

    fn add(&mut self, subject: &'static str, state: State, message: impl Into<String>, remedy: Option<String>) {
        self.0.push(Finding { subject, state, message: message.into(), remedy });
    }

    /// Returns whether no check failed and, if `strict`, none warned.
    pub fn passes(&self, strict: bool) -> bool {
        !self.0.iter().any(|f| f.state == State::Fail || (strict && f.state == State::Warn))
    }

    /// Returns the report for scripts.
    pub fn json(&self, strict: bool) -> Value {
        let checks: Vec<_> =
            self.0.iter().map(|f| json!({ "check": f.subject, "state": f.state.word(), "says": f.message, "todo": f.remedy })).collect();
        json!({ "passes": self.passes(strict), "checks": checks })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|f| f.subject.len()).max().unwrap_or_default();
        for f in &self.0 {
            writeln!(out, "{:<4}  {:<width$}  {}", f.state.word(), f.subject, f.message)?;
            if let Some(remedy) = &f.remedy {
                writeln!(out, "      {:<width$}  -> {remedy}", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_json_and_exit_status_agree() {
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
