//! `vgpu`, the operator's command-line tool. Each subcommand is a module.

pub mod check;
mod config_args;
pub mod configure;
mod file_change;
pub mod generate;
mod human;
pub mod inventory;
pub mod monitor;
mod origins;
mod outcome;
pub mod run;
pub mod set;
pub mod show;
pub mod top;
pub mod trace;

pub use outcome::Outcome;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Share NVIDIA GPUs among containers, with limits on memory and GPU time.
#[derive(Debug, Parser)]
#[command(name = "vgpu", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    Configure(configure::Args),
    Check(check::Args),
    #[command(visible_alias = "list")]
    Show(show::Args),
    Top(top::Args),
    Set(set::Args),
    Run(run::Args),
    Trace(trace::Args),
    Monitor(monitor::Args),
    Inventory(inventory::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}

impl Cli {
    /// Runs the subcommand. Prints an error to stderr and returns failure if it cannot do its work.
    pub fn run(self) -> ExitCode {
        let outcome = match self.command {
            Command::Configure(args) => args.run(),
            Command::Check(args) => args.run(),
            Command::Show(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Set(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Trace(args) => args.run(),
            Command::Monitor(args) => args.run(),
            Command::Inventory(args) => args.run(),
            Command::Generate(args) => args.run(&Self::command()),
        };
        outcome.unwrap_or_else(|error| {
            eprintln!("vgpu: {error}");
            ExitCode::FAILURE
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_valid() {
        super::Cli::command().debug_assert();
    }
}
