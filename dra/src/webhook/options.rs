//! Command line of `vgpu-webhook`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::names::{is_dns_label, is_dns_subdomain};

/// Mutating admission webhook: turns HAMi's resources in pods into ResourceClaims
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "vgpu-webhook", version)]
// Its default group id, the name of the type, is that of the flattened log options too.
#[group(skip)]
pub struct Options {
    /// Address to serve HTTPS on: /mutate and /healthz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8443", value_parser = vgpu_monitor::http::address)]
    pub listen: SocketAddr,
    /// Certificate chain in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.crt")]
    pub certificate: PathBuf,
    /// Private key in PEM
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.key")]
    pub key: PathBuf,
    /// CA in PEM, of which /mutate requires a client certificate; reloaded when it changes. Without it, any client may call /mutate
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Make and renew the certificate, and keep it in this Secret and in the files; its CA is written into --configuration
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = secret_name, requires = "configuration", requires = "host")]
    pub own_certificate: Option<(String, String)>,
    /// MutatingWebhookConfiguration of this webhook
    #[arg(long, value_name = "NAME")]
    pub configuration: Option<String>,
    /// DNS name of this webhook's service; repeatable
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// RuntimeClass for pods with a share that name none; empty to leave them without one
    #[arg(long, value_name = "NAME", default_value = "vgpu")]
    pub runtime_class: String,
    /// Kubeconfig for access from outside the cluster
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Format and level of the log
    #[command(flatten)]
    pub log: vgpu_logging::Options,
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
