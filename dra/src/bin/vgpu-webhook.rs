//! The admission webhook.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tokio::net::TcpListener;
use vgpu_dra::webhook::review::Webhook;
use vgpu_dra::webhook::server::serve;
use vgpu_dra::webhook::tls::Tls;
use vgpu_dra::{cluster, daemon};

/// Mutating admission webhook: turns HAMi's resources in pods into ResourceClaims
#[derive(Debug, Parser)]
#[command(name = "vgpu-webhook", version)]
// Its default group id, the name of the type, is that of the flattened log options too.
#[group(skip)]
struct Options {
    /// Address to serve HTTPS on: /mutate and /healthz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Certificate chain in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.crt")]
    certificate: PathBuf,
    /// Private key in PEM
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.key")]
    key: PathBuf,
    /// CA in PEM, of which /mutate requires a client certificate; reloaded when it changes. Without it, any client may call /mutate
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// RuntimeClass for pods with a share that name none; empty to leave them without one
    #[arg(long, value_name = "NAME", default_value = "vgpu")]
    runtime_class: String,
    /// Kubeconfig for access from outside the cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    log: vgpu_logging::Options,
}

fn main() -> ExitCode {
    let options = Options::parse();
    daemon::main(&options.log.clone(), run(options))
}

async fn run(options: Options) -> Result<(), String> {
    let client = cluster::client(options.kubeconfig.as_deref()).await?;
    let mut tls = Tls::new(options.certificate, options.key, options.client_ca);
    // Fail at the start rather than at the first connection.
    tls.acceptor()?;
    let listener = TcpListener::bind(options.listen).await.map_err(|error| format!("{}: {error}", options.listen))?;
    let runtime_class = Some(options.runtime_class).filter(|class| !class.is_empty());
    serve(Webhook { client, runtime_class }, listener, tls, daemon::shutdown_signal()).await;
    Ok(())
}
