//! `vgpu configure`: registers vgpu with a container runtime, and takes it back.

mod backup;
pub(crate) mod containerd;
pub(crate) mod crio;
pub(crate) mod docker;
pub(crate) mod drop_in;
pub(crate) mod error;
mod hooks;
pub(crate) mod managed;
pub(crate) mod options;
pub(crate) mod podman;
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
/// Changes as little as possible: a file of vgpu's own where the runtime reads such files, one key where it does not.
/// Comments and every other key stay, the original is kept beside the file as NAME.vgpu-backup, and --undo brings it
/// back. Doing it twice changes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which runtime
    runtime: Runtime,
    /// The runtime's main configuration file, where it is not at its usual place; vgpu's own file goes to the folder
    /// beside it that the runtime reads
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Use vgpu for containers that name no runtime, too
    #[arg(long, conflicts_with_all = ["undo", "hooks"])]
    set_as_default: bool,
    /// Register OCI hooks (hooks.d) rather than a runtime; crio and podman only
    #[arg(long)]
    hooks: bool,
    /// Print what would change as a unified diff, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Take vgpu out again
    #[arg(long)]
    undo: bool,
    /// The runtime to register
    #[arg(long, value_name = "PATH", default_value = "/usr/bin/vgpu-runtime")]
    runtime_path: PathBuf,
    /// The hook to register with --hooks
    #[arg(long, value_name = "PATH", default_value = "/usr/bin/vgpu-hook")]
    hook_path: PathBuf,
}

/// The runtimes that can be configured.
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
    /// Where its main configuration file usually is.
    pub fn usual_config(self) -> &'static str {
        match self {
            Self::Docker => "/etc/docker/daemon.json",
            Self::Containerd => "/etc/containerd/config.toml",
            Self::Crio => "/etc/crio/crio.conf",
            Self::Podman => "/etc/containers/containers.conf",
        }
    }

    /// What makes the running daemon take up the change.
    fn reload(self) -> Option<&'static str> {
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
            let shown = changes.iter().filter(|change| !backup::is_copy(&change.path));
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
        if let Some(command) = self.runtime.reload() {
            println!("to take it up: {command}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn changes(&self) -> Result<Vec<FileChange>, Error> {
        let config = self.config.clone().unwrap_or_else(|| self.runtime.usual_config().into());
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
            runtime: plain("--runtime-path", &self.runtime_path)?,
            hook: if self.hooks { Some(plain("--hook-path", &self.hook_path)?) } else { None },
            default: self.set_as_default,
        };
        let program = if self.hooks { &self.hook_path } else { &self.runtime_path };
        if !program.exists() {
            eprintln!("vgpu: note: {} is not there yet; containers will not start before it is", program.display());
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

/// A program's path as it goes into others' files, where quotes and control characters have no place.
fn plain(what: &'static str, path: &Path) -> Result<String, Error> {
    path.to_str()
        .filter(|text| path.is_absolute() && !text.contains(|c: char| c.is_control() || c == '"' || c == '\\'))
        .map(str::to_owned)
        .ok_or_else(|| Error::Path { what, path: path.to_owned() })
}
