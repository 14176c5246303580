//! `vgpu monitor`: the host daemon that serves metrics, enforces limits from outside, and runs the arbiter.

use crate::config_args::ConfigArgs;
use crate::outcome::Outcome;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use vgpu_monitor::http::{self, CredentialFiles};
use vgpu_monitor::metrics::Dialect;
use vgpu_monitor::parts::{self, Part, supervisor};
use vgpu_monitor::settings::Settings;

/// Serve metrics, detect violations of limits from outside, and give containers turns
///
/// Compares the memory that NVML reports for each container's processes with the container's limit. The policy file's on_violation and
/// violation_grace_seconds set the response to a violation. Writes the inventory of GPUs at its start, and HAMi's shared region for
/// containers that request it by CUDA_DEVICE_MEMORY_SHARED_CACHE. Consists of several processes, each with the privileges that it needs;
/// those that end or hang are started again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address for HTTP: the web page, /metrics and /healthz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9394", value_parser = http::address)]
    listen: SocketAddr,
    /// Serve HTTPS with this certificate chain (PEM). Read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Require the token in this file for /metrics, as "Authorization: Bearer TOKEN", and for the web page, which asks for it: one word of
    /// at least 16 characters. Read again when it changes
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
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
    /// Run one part, in a process that vgpu monitor started for it
    #[arg(long, hide = true)]
    part: Option<Part>,
    #[command(flatten)]
    log: vgpu_logging::Options,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    /// Runs the subcommand until SIGTERM or SIGINT.
    pub fn run(self) -> Outcome {
        vgpu_logging::init(&self.log)?;
        let stop = Arc::new(AtomicBool::new(false));
        if self.part != Some(Part::Http) {
            for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
                signal_hook::flag::register(signal, Arc::clone(&stop))?;
            }
        }
        if let Some(part) = self.part {
            parts::run(part, &stop)?;
            return Ok(ExitCode::SUCCESS);
        }
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
        // Binding may need a capability that the supervisor drops.
        let listener = TcpListener::bind(self.listen).map_err(|error| format!("cannot listen on {}: {error}", self.listen))?;
        let files = CredentialFiles { tls: self.tls_cert.zip(self.tls_key), token: self.token_file };
        let scheme = if files.tls.is_some() { "https" } else { "http" };
        if files.token.is_none() && !self.listen.ip().is_loopback() {
            tracing::warn!(
                "every client that reaches this address may read the metrics and the web page: expected a loopback address or --token-file"
            );
        }
        let url = format!("{scheme}://{}", listener.local_addr()?);
        tracing::info!(metrics = %format_args!("{url}/metrics"), page = %format_args!("{url}/"), "answering HTTP");
        supervisor::run(settings, listener, files, &stop)?;
        Ok(ExitCode::SUCCESS)
    }
}
