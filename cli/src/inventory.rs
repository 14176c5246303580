//! `vgpu inventory`: writes the list of GPUs for programs that must not load NVML.

use crate::config_args::ConfigArgs;
use crate::human::bytes;
use crate::outcome::Outcome;
use std::process::ExitCode;
use vgpu_monitor::gpus::{Gpus, explain};
use vgpu_monitor::inventory;

/// Write the list of this machine's GPUs
///
/// vgpu-runtime and vgpu-hook read it when a container requests GPUs by count, type, percentage of memory or index.
/// "vgpu monitor" writes it when it starts; use this command on machines without it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the list as JSON and write no file
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let found = Gpus::open().and_then(|nvml| nvml.inventory()).map_err(|error| format!("NVML: {}", explain(&error)))?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&found)?);
            return Ok(ExitCode::SUCCESS);
        }
        let path = inventory::write(&self.config.state_dir()?, &found)?;
        for gpu in &found.gpus {
            println!("{}: {} {}, {}", gpu.index, gpu.name, gpu.uuid, bytes(gpu.memory));
        }
        println!("wrote {}", path.display());
        Ok(ExitCode::SUCCESS)
    }
}
