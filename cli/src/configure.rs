//! `vgpu configure`: registers vgpu with a container runtime, and removes the registration.

mod backup;
pub(crate) mod containerd;
pub mod crio;
pub mod docker;
pub mod drop_in;
pub mod error;
mod hooks;
pub(crate) mod managed;
pub(crate) mod options;
pub mod podman;
mod toml_layers;

pub use options::HANDLER;

use crate::file_change::FileChange;
use crate::outcome::Outcome;
use error::Error;
use options::Options;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Register vgpu with a container runtime
///
/// Makes the smallest change: a drop-in file where the runtime reads drop-ins, one key where it does not. Comments and all
/// other keys stay. The original file is saved as NAME.vgpu-backup, and --undo restores it. A second run changes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Container runtime
    runtime: Runtime,
    /// Main configuration file of the runtime, if not at its default path; vgpu's own file goes into the runtime's
    /// drop-in folder next to it
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Make vgpu the default runtime
    #[arg(long, conflicts_with_all = ["undo", "hooks"])]
    set_as_default: bool,
    /// Register OCI hooks (hooks.d) instead of a runtime; crio and podman only
    #[arg(long)]
    hooks: bool,
    /// Print the change as a unified diff, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove vgpu from the configuration
    #[arg(long)]
    undo: bool,
    /// Program to register as runtime
    #[arg(long, value_name = "PATH", default_value = "/usr/bin/vgpu-runtime")]
    runtime_path: PathBuf,
    /// Program to register with --hooks
    #[arg(long, value_name = "PATH", default_value = "/usr/bin/vgpu-hook")]
    hook_path: PathBuf,
}

/// Container runtimes that can be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Runtime {
    /// Docker: /etc/docker/daemon.json
    Docker,
    /// containerd: /etc/containerd/config.toml and conf.d/99-vgpu.toml
    Containerd,
    /// CRI-O: /etc/crio/crio.conf.d/99-vgpu.toml
    Crio,
    /// Podman: /etc/containers/containers.conf.d/99-vgpu.conf
    Podman,
}

impl Runtime {
    /// Returns the default path of its main configuration file.
    pub fn default_config(self) -> &'static str {
        match self {
            Self::Docker => "/etc/docker/daemon.json",
            Self::Containerd => "/etc/containerd/config.toml",
            Self::Crio => "/etc/crio/crio.conf",
            Self::Podman => "/etc/containers/containers.conf",
        }
    }

    /// Returns the command that makes the running daemon apply the change.
    fn reload_command(self) -> Option<&'static str> {
        match self {
            Self::Docker => Some("systemctl reload docker"),
            Self::Containerd => Some("systemctl restart containerd"),
            Self::Crio => Some("systemctl restart crio"),
            Self::Podman => None,
        }
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let changes = self.changes()?;
        if self.dry_run {
            let shown = changes.iter().filter(|change| !backup::is_backup(&change.path));
            shown.for_each(|change| print!("{}", change.diff()));
            return Ok(ExitCode::SUCCESS);
        }
        if changes.iter().all(FileChange::is_empty) {
            println!("nothing to do");
            return Ok(ExitCode::SUCCESS);
        }
        for change in changes.iter().filter(|change| !change.is_empty()) {
            change.apply()?;
            let verb = if change.after.is_some() { "wrote" } else { "removed" };
            println!("{verb} {}", change.path.display());
        }
        if let Some(command) = self.runtime.reload_command() {
            println!("to apply the change: {command}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the changes, ordered so that the runtime can start between any two of them.
    fn changes(&self) -> Result<Vec<FileChange>, Error> {
        let config = self.config.clone().unwrap_or_else(|| self.runtime.default_config().into());
        let config = std::path::absolute(&config).unwrap_or(config);
        if self.undo {
            return match self.runtime {
                Runtime::Docker => docker::undo(&config),
                Runtime::Containerd => containerd::undo(&config),
                Runtime::Crio => crio::CRIO.undo(&config),
                Runtime::Podman => podman::PODMAN.undo(&config),
            };
        }
        let options = Options {
            config,
            runtime: checked_path("--runtime-path", &self.runtime_path)?,
            hook: if self.hooks { Some(checked_path("--hook-path", &self.hook_path)?) } else { None },
            default: self.set_as_default,
        };
        let program = if self.hooks { &self.hook_path } else { &self.runtime_path };
        if !program.exists() {
            eprintln!("vgpu: note: {} does not exist; containers will not start until it is installed", program.display());
        }
        match self.runtime {
            Runtime::Docker | Runtime::Containerd if self.hooks => {
                Err(Error::NoHooks(if self.runtime == Runtime::Docker { "docker" } else { "containerd" }))
            }
            Runtime::Docker => docker::configure(&options),
            Runtime::Containerd => containerd::configure(&options),
            Runtime::Crio => crio::CRIO.configure(&options),
            Runtime::Podman => podman::PODMAN.configure(&options),
        }
    }
}

/// Checks a path that goes into configuration files of others, where quotes and control characters are not allowed.
fn checked_path(option: &'static str, path: &Path) -> Result<String, Error> {
    path.to_str()
        .filter(|text| path.is_absolute() && !text.contains(|c: char| c.is_control() || c == '"' || c == '\\'))
        .map(str::to_owned)
        .ok_or_else(|| Error::Path { option, path: path.to_owned() })
}
