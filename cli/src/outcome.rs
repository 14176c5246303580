//! The result of a subcommand.

use std::process::ExitCode;

/// Exit status of a subcommand, or the error that prevented its work.
pub type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;
