//! What both programs need of the cluster and of the machine: a client, and the word to stop.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};

/// A client for the cluster: by this file, else as pods have it, else as people have it.
///
/// # Errors
/// The configuration cannot be read.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, String> {
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => Config::infer().await.map_err(|error| error.to_string())?,
    };
    Client::try_from(config).map_err(|error| error.to_string())
}

/// Comes with SIGTERM or SIGINT.
pub async fn told_to_stop() {
    let both = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut term), Ok(mut int)) = both else { return std::future::pending().await };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}
