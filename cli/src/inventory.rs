//! `vgpu inventory`: writes down which GPUs there are, for those who must not load NVML.

use crate::config_args::ConfigArgs;
use crate::human::bytes;
use crate::outcome::Outcome;
use std::path::PathBuf;
use std::process::ExitCode;
use vgpu_monitor::gpus::{Gpus, explain};
use vgpu_monitor::inventory;

/// Write down which GPUs this machine has
///
/// vgpu-runtime and vgpu-hook read it when a container asks for GPUs by number, type or share of their memory, or by an
/// index. "vgpu monitor" writes it at its start; this is for machines where that does not run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print it as JSON rather than lines, and write nothing
    #[arg(long)]
    json: bool,
    /// Where to write it, where that is not the state directory
    #[arg(long, value_name = "FOLDER", conflicts_with = "json")]
    state_dir: Option<PathBuf>,
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
        let folder = self.state_dir.map_or_else(|| self.config.state_dir(), Ok)?;
        let path = inventory::write(&folder, &found)?;
        for gpu in &found.gpus {
            println!("{}: {} {}, {}", gpu.index, gpu.name, gpu.uuid, bytes(gpu.memory));
        }
        println!("wrote {}", path.display());
        Ok(ExitCode::SUCCESS)
    }
}
