//! `vgpu check`: what is right on this machine, line by line, and what to do about the rest.

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

/// Say what is right on this machine, and what to do about the rest
///
/// Exit status: 0 where containers can share GPUs here, 1 where something must be done first. Lines that begin with
/// "warn" do not count unless --strict is given.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print a JSON object rather than lines
    #[arg(long)]
    json: bool,
    /// Let warnings fail, too
    #[arg(long)]
    strict: bool,
    /// The policy file, where it is not /etc/vgpu/config.toml (or what VGPU_CONFIG names)
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let machine = Machine::this();
        let report = examine(&machine, self.config.as_deref());
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report.json(self.strict))?);
        } else {
            print!("{report}");
        }
        Ok(if report.passes(self.strict) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Everything, in the order in which a person would look.
fn examine(machine: &Machine, config: Option<&Path>) -> Report {
    let mut report = Report::default();
    gpu::driver(machine, &mut report);
    gpu::devices(machine, &mut report);
    gpu::toolkit(machine, &mut report);
    system::kernel(machine, &mut report);
    system::cgroups(machine, &mut report);
    let policy = installed::policy(machine, config, &mut report);
    installed::programs(machine, &policy, &mut report);
    library::library(machine, &policy.library, &mut report);
    system::state(machine, &policy.state_dir(None), &mut report);
    runtimes::all(machine, &mut report);
    report
}
