//! Output of the answers.

use std::fmt::Display;

use vgpu_test_programs::cuda::{name, sys::CUresult};
use vgpu_test_programs::nvml::Nvml;

/// Prints answers under the name of a subject, and measures memory between them.
pub struct Report {
    subject: &'static str,
    nvml: Option<Nvml>,
    last: u64,
}

impl Report {
    pub fn new(subject: &'static str) -> Report {
        Report { subject, nvml: None, last: 0 }
    }

    /// Starts measuring memory.
    pub fn measure(&mut self) {
        self.nvml = Nvml::open(0).ok();
        self.last = self.own();
    }

    fn own(&self) -> u64 {
        self.nvml.as_ref().and_then(Nvml::own).unwrap_or(0)
    }

    /// Prints an answer of the driver.
    pub fn answer(&self, what: impl Display, answer: impl Display) {
        println!("{}: {what}: {answer}", self.subject);
    }

    /// Prints a comment, for what varies by machine.
    pub fn note(&self, text: impl Display) {
        println!("# {}: {text}", self.subject);
    }

    /// Prints the code that a call returned.
    pub fn code(&self, what: impl Display, code: CUresult) {
        self.answer(what, name(code));
    }

    /// Prints the growth of this process's memory since the last such line.
    pub fn growth(&mut self, what: impl Display) {
        let now = self.own();
        self.answer(what, format!("{:+} bytes", now.cast_signed() - self.last.cast_signed()));
        self.last = now;
    }
}
