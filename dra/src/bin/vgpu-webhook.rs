//! The admission webhook.

use std::process::ExitCode;

use clap::Parser;
use tokio::net::TcpListener;
use vgpu_dra::webhook::certificate::OwnCertificate;
use vgpu_dra::webhook::options::Options;
use vgpu_dra::webhook::review::Webhook;
use vgpu_dra::webhook::server::serve;
use vgpu_dra::webhook::tls::Tls;
use vgpu_dra::{cluster, daemon};

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
