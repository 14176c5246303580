//! The table of the checks.

use std::fmt::Write;
use std::time::Duration;

use crate::setting::Outcome;

/// A line for each check, a column for each setting.
#[derive(Debug, Default)]
pub struct Report {
    columns: Vec<String>,
    lines: Vec<(&'static str, Vec<String>)>,
    notes: Vec<&'static str>,
    failures: Vec<String>,
}

impl Report {
    /// Starts the column of a setting.
    pub fn column(&mut self, name: String) {
        self.columns.push(name);
    }

    /// Adds what a check found in the setting of the last column.
    pub fn check(&mut self, name: &'static str, took: Duration, outcome: Outcome, log: &str) {
        let setting = self.columns.last().map(String::as_str).unwrap_or_default();
        let cell = format!("{:.1} s{}", took.as_secs_f64(), if outcome.is_ok() { "" } else { ", **failed**" });
        eprintln!("{setting}: {name}: {cell}");
        if let Err(error) = outcome {
            self.failure(name, &format!("{error}\n{log}"));
        }
        self.cell(name, cell);
    }

    /// Adds a cell to the column of the last setting.
    pub fn cell(&mut self, name: &'static str, cell: String) {
        match self.lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => line.1.push(cell),
            None => self.lines.push((name, vec![cell])),
        }
    }

    /// Adds a sentence about what was not done.
    pub fn note(&mut self, sentence: &'static str) {
        eprintln!("SKIPPED: {sentence}");
        self.notes.push(sentence);
    }

    /// Adds a failure in the setting of the last column.
    pub fn failure(&mut self, name: &str, why: &str) {
        let setting = self.columns.last().map(String::as_str).unwrap_or_default();
        eprintln!("{setting}: {name}: {why}");
        self.failures.push(format!("{setting}, {name}:\n\n```text\n{}\n```\n", why.trim_end()));
    }

    /// Returns whether a check failed, or none ran.
    pub fn has_failed(&self) -> bool {
        !self.failures.is_empty() || self.lines.is_empty()
    }

    /// Returns the table and the failures in Markdown.
    pub fn text(&self) -> String {
        let mut text = format!("| check | {} |\n|---|{}\n", self.columns.join(" | "), "---|".repeat(self.columns.len()));
        for (name, cells) in &self.lines {
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        for failure in &self.failures {
            let _ = write!(text, "\n{failure}");
        }
        text
    }
}
