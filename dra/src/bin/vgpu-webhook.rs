//! The admission webhook.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tokio::net::TcpListener;
use vgpu_dra::names::{is_dns_label, is_dns_subdomain};
use vgpu_dra::webhook::certificate::OwnCertificate;
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
    /// Make and renew the certificate, and keep it in this Secret and in the files; its CA is written into --configuration
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = secret_name, requires = "configuration", requires = "host")]
    own_certificate: Option<(String, String)>,
    /// MutatingWebhookConfiguration of this webhook
    #[arg(long, value_name = "NAME")]
    configuration: Option<String>,
    /// DNS name of this webhook's service; repeatable
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// RuntimeClass for pods with a share that name none; empty to leave them without one
    #[arg(long, value_name = "NAME", default_value = "vgpu")]
    runtime_class: String,
    /// Kubeconfig for access from outside the cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    log: vgpu_logging::Options,
}

/// Parses the name of a Secret.
fn secret_name(text: &str) -> Result<(String, String), String> {
    let (namespace, name) = text.split_once('/').ok_or("expected NAMESPACE/NAME")?;
    if is_dns_label(namespace) && is_dns_subdomain(name) {
        Ok((namespace.to_owned(), name.to_owned()))
    } else {
        Err("expected NAMESPACE/NAME: a DNS label and a DNS subdomain".to_owned())
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    daemon::main(&options.log.clone(), run(options))
}

async fn run(options: Options) -> Result<(), String> {
    let client = cluster::client(options.kubeconfig.as_deref()).await?;
    let own = options.own_certificate.map(|(namespace, secret)| OwnCertificate {
        client: client.clone(),
        namespace,
        secret,
        configuration: options.configuration.unwrap_or_default(),
        hosts: options.host,
        files: (options.certificate.clone(), options.key.clone()),
    });
    if let Some(own) = &own {
        own.obtain().await;
    }
    let mut tls = Tls::new(options.certificate, options.key, options.client_ca);
    // Fail at the start rather than at the first connection.
    tls.acceptor()?;
    let listener = TcpListener::bind(options.listen).await.map_err(|error| format!("{}: {error}", options.listen))?;
    let runtime_class = Some(options.runtime_class).filter(|class| !class.is_empty());
    let renewal = async {
        match &own {
            Some(own) => own.keep().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = serve(Webhook { client, runtime_class }, listener, tls, daemon::shutdown_signal()) => {}
        () = renewal => {}
    }
    Ok(())
}
