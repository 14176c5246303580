//! Where answers go.

use std::fmt::Display;

use vgpu_test_programs::cuda::{name, sys::CUresult};
use vgpu_test_programs::nvml::Nvml;

/// Prints answers under a subject's name, and measures memory between them.
pub struct Report {
    subject: &'static str,
    nvml: Option<Nvml>,
    last: u64,
}

impl Report {
    pub fn new(subject: &'static str) -> Report {
        Report { subject, nvml: None, last: 0 }
    }

    /// Measures from here on.
    pub fn measure(&mut self) {
        self.nvml = Nvml::open(0).ok();
        self.last = self.own();
    }

    fn own(&self) -> u64 {
        self.nvml.as_ref().and_then(Nvml::own).unwrap_or(0)
    }

    /// Something the driver answered.
    pub fn say(&self, what: impl Display, answer: impl Display) {
        println!("{}: {what}: {answer}", self.subject);
    }

    /// A comment: what varies by machine.
    pub fn note(&self, text: impl Display) {
        println!("# {}: {text}", self.subject);
    }

    /// The code of a call.
    pub fn code(&self, what: impl Display, code: CUresult) {
        self.say(what, name(code));
    }

    /// What this process' memory grew by since the last such line.
    pub fn grown(&mut self, what: impl Display) {
        let now = self.own();
        self.say(what, format!("{:+} bytes", now.cast_signed() - self.last.cast_signed()));
        self.last = now;
    }
}
