//! `vgpu monitor`: the host daemon that serves metrics, enforces limits from outside, and runs the arbiter.

use crate::config_args::ConfigArgs;
use crate::outcome::Outcome;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use vgpu_monitor::capabilities;
use vgpu_monitor::metrics::Dialect;
use vgpu_monitor::service::{self, Settings};

/// Serve metrics, detect violations of limits from outside, and give containers turns
///
/// Compares the memory that NVML reports for each container's processes with the container's limit. The policy file's on_violation and
/// violation_grace_seconds set the response to a violation. Writes the inventory of GPUs at its start, and HAMi's shared region for
/// containers that request it by CUDA_DEVICE_MEMORY_SHARED_CACHE. Drops the capabilities that it does not need.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address for HTTP: /metrics and /healthz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9394")]
    listen: SocketAddr,
    /// Node name in the metrics; the host name by default
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: Option<String>,
    /// Omit the metrics of HAMi's scheduler, if that scheduler runs
    #[arg(long)]
    no_scheduler_metrics: bool,
    /// Also expose HAMi's former metric names
    #[arg(long)]
    legacy_metrics: bool,
    /// Give no turns: containers on one GPU run at any time, each within its own limit
    #[arg(long)]
    no_turns: bool,
    #[command(flatten)]
    log: vgpu_logging::Options,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    /// Runs the subcommand until SIGTERM or SIGINT.
    pub fn run(self) -> Outcome {
        vgpu_logging::init(&self.log)?;
        let policy = self.config.policy()?;
        let host_name = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let settings = Settings {
            state_dir: self.config.state_dir()?,
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
        // Binding may need a capability that is dropped next. Threads inherit the rest, so none may run before.
        let listener = TcpListener::bind(self.listen).map_err(|error| format!("cannot listen on {}: {error}", self.listen))?;
        capabilities::drop_unneeded();
        service::run(&settings, listener, &stop)?;
        Ok(ExitCode::SUCCESS)
    }
}
