//! The webhook.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tokio::net::TcpListener;
use vgpu_dra::webhook::server::{Webhook, serve};
use vgpu_dra::webhook::tls::Tls;
use vgpu_dra::{cluster, daemon};

/// Turn HAMi's resources in pods into claims: a mutating admission webhook
#[derive(Debug, Parser)]
#[command(name = "vgpu-webhook", version)]
struct Options {
    /// Where to answer HTTPS: /mutate and /healthz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// The certificate with its chain, as PEM; read again when it changes
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.crt")]
    certificate: PathBuf,
    /// Its key, as PEM
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.key")]
    key: PathBuf,
    /// The RuntimeClass that pods with a share get, unless they say one; empty for none
    #[arg(long, value_name = "NAME", default_value = "vgpu")]
    runtime_class: String,
    /// How the cluster is reached, where that is not from inside
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

const NAME: &str = "vgpu-webhook";

fn main() -> ExitCode {
    vgpu_dra::daemon::main(NAME, run(Options::parse()))
}

async fn run(options: Options) -> Result<(), String> {
    let client = cluster::client(options.kubeconfig.as_deref()).await?;
    let mut tls = Tls::new(options.certificate, options.key);
    // What cannot work is said at the start.
    tls.acceptor()?;
    let listener = TcpListener::bind(options.listen).await.map_err(|error| format!("{}: {error}", options.listen))?;
    let class = Some(options.runtime_class).filter(|class| !class.is_empty());
    serve(Webhook { client, class }, listener, tls, |line| vgpu_dra::daemon::say(NAME, line), daemon::shutdown_signal()).await;
    Ok(())
}
