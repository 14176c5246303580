//! `vgpu monitor`: the service that watches from outside.

use crate::config_args::ConfigArgs;
use crate::outcome::Outcome;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use vgpu_monitor::metrics::Dialect;
use vgpu_monitor::service::{self, Settings};

/// Serve metrics, notice from outside who goes past its limits, and give containers turns
///
/// Compares what NVML says each container's processes hold with what the container may hold. What to do about those that
/// hold more is said by on_violation and violation_grace_seconds in the policy file. It writes the inventory of GPUs at its start, and
/// HAMi's shared region where a container's CUDA_DEVICE_MEMORY_SHARED_CACHE asks for it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to answer HTTP: /metrics and /healthz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9394")]
    listen: SocketAddr,
    /// This machine's name in the metrics, where it is not its host name (or what NODE_NAME says)
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: Option<String>,
    /// Leave out what HAMi's scheduler tells of GPUs, where that runs itself
    #[arg(long)]
    no_scheduler_metrics: bool,
    /// Tell everything under HAMi's old names, too
    #[arg(long)]
    legacy_metrics: bool,
    /// Give no turns: containers on one GPU run whenever they like, each within its own limit
    #[arg(long)]
    no_turns: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    /// Runs the subcommand, until SIGTERM or SIGINT.
    pub fn run(self) -> Outcome {
        let policy = self.config.policy()?;
        let host_name = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let settings = Settings {
            state_dir: self.config.state_dir()?,
            listen: self.listen,
            node: self.node.unwrap_or_else(host_name),
            dialect: Dialect { scheduler: !self.no_scheduler_metrics, legacy: self.legacy_metrics },
            on_violation: policy.on_violation,
            grace: Duration::from_secs(policy.violation_grace_seconds),
            turns: !self.no_turns,
        };
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        service::run(&settings, &stop, &|line| eprintln!("vgpu monitor: {line}"))?;
        Ok(ExitCode::SUCCESS)
    }
}
