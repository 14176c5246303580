//! `vgpu check`: checks this machine's setup, and says how to correct it.

mod gpu;
mod installed;
mod library;
mod machine;
mod report;
mod runtimes;
mod system;

use crate::outcome::Outcome;
use machine::Machine;
use report::Report;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check this machine's setup, and say how to correct it
///
/// Exit status: 0 if containers can share GPUs on this machine, 1 if a check failed. Warnings count as failures with
/// --strict only.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
    /// Treat warnings as failures
    #[arg(long)]
    strict: bool,
    /// Policy file (default: $VGPU_CONFIG, or /etc/vgpu/config.toml)
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let machine = Machine::local();
        let report = run_checks(&machine, self.config.as_deref());
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report.json(self.strict))?);
        } else {
            print!("{report}");
        }
        Ok(if report.passes(self.strict) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Runs all checks, from the driver up to the container runtimes.
fn run_checks(machine: &Machine, config: Option<&Path>) -> Report {
    let mut report = Report::default();
    gpu::check_driver(machine, &mut report);
    gpu::check_devices(machine, &mut report);
    gpu::check_toolkit(machine, &mut report);
    system::check_kernel(machine, &mut report);
    system::check_cgroups(machine, &mut report);
    let policy = installed::check_policy(machine, config, &mut report);
    installed::check_programs(machine, &policy, &mut report);
    library::check_library(machine, &policy.library, &mut report);
    system::check_state_dir(machine, &policy.state_dir(None), &mut report);
    runtimes::check_runtimes(machine, &mut report);
    report
}
