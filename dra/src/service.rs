//! The plugin's service: serves the kubelet, polls the GPUs and keeps the slices.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{TryFutureExt, pin_mut};
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tracing::warn;

use crate::checkpoint::Checkpoint;
use crate::discovery::GpuSource;
use crate::driver::Driver;
use crate::kubelet::Plugin;
use crate::names::DRIVER;
use crate::options::Options;
use crate::publication::watch_slices;
use crate::reconcile::Reconciler;
use crate::status::{self, Status};
use crate::storage::Storage;
use crate::{backoff::Backoff, socket};

/// Time for requests in progress at shutdown. Shorter than a pod's default termination grace period of 30 s.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of poll intervals, and further time, after which a loop without a round counts as stuck. A round asks NVML for three intervals and
/// the API server for two minutes at most.
const STUCK_INTERVALS: u64 = 6;
/// See [`STUCK_INTERVALS`].
const STUCK_MORE: Duration = Duration::from_secs(180);

/// Runs the plugin until `stop` completes.
///
/// # Errors
/// A socket, the checkpoint or a claim's file cannot be created. An API server or GPU driver that does not answer is no error: both are
/// asked again.
pub async fn run(
    options: &Options,
    client: Client,
    source: Arc<dyn GpuSource>,
    storage: Arc<dyn Storage>,
    stop: impl Future<Output = ()>,
) -> Result<(), String> {
    let checkpoint = Checkpoint(options.checkpoint_path());
    let driver = Arc::new(Driver::new(options.node.clone(), client.clone(), options.cdi_config(), checkpoint, storage)?);
    let stuck_after = Duration::from_secs(STUCK_INTERVALS * options.poll_interval_s) + STUCK_MORE;
    let status = Arc::new(Status::new(stuck_after));
    let health_server = health_server(options, Arc::clone(&status)).await?;
    driver.restore().await?;
    status.claims(driver.claim_count().await);
    let resync = Arc::new(Notify::new());
    let (health_sender, health) = watch::channel(Vec::new());
    let mut reconciler = Reconciler::new(options, source, Arc::clone(&driver), health_sender);
    // The driver must know the devices before the kubelet's first request.
    reconciler.poll_devices().await;
    let (stopped, stopping) = watch::channel(());
    let until_stopped = || {
        let mut stopping = stopping.clone();
        async move { drop(stopping.changed().await) }
    };
    // The DRA socket must exist before the registration socket announces it.
    let plugin = Plugin::new(Arc::clone(&driver), options.dra_socket(), Arc::clone(&resync), health, Arc::clone(&status));
    let (dra_path, registration_path) = (options.dra_socket(), options.registration_socket());
    socket::remove_stale(&dra_path, "dra", ".sock");
    socket::remove_stale(&registration_path, DRIVER, "-reg@kubelet.sock");
    let dra = socket::serve(plugin.clone(), &dra_path, socket::listen(&dra_path)?, until_stopped());
    let registration = socket::serve(plugin, &registration_path, socket::listen(&registration_path)?, until_stopped());
    let slices = reconciler.run(client.clone(), options, &resync, &status);
    let slice_watch = watch_slices(client, &options.node, &resync);
    let deleted_claims = unprepare_deleted(&driver);
    let served = async { tokio::try_join!(dra, registration).map(drop) };
    pin_mut!(served);
    tokio::select! {
        ended = &mut served => return ended,
        () = stop => {}
        () = slices => {}
        () = slice_watch => {}
        () = deleted_claims => {}
        () = health_server => {}
    }
    // The slices stay: pods keep their shares, and an upgraded plugin takes over soon. If none does, the kubelet deletes the slices.
    drop(stopped);
    // Ends the health stream. Otherwise the kubelet would wait for its next report, and the server for the kubelet.
    drop(reconciler);
    // The kubelet may not answer at all.
    tokio::time::timeout(SHUTDOWN_TIMEOUT, served).await.unwrap_or(Ok(()))
}

/// Returns the server of health and metrics, which never completes. Without an address it does nothing.
async fn health_server(options: &Options, status: Arc<Status>) -> Result<impl Future<Output = ()> + use<>, String> {
    let listener = match options.listen {
        Some(address) => Some(TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?),
        None => None,
    };
    Ok(async move {
        match listener {
            Some(listener) => status::serve(status, listener).await,
            None => std::future::pending().await,
        }
    })
}

/// Unprepares deleted claims once, as soon as the API server answers. Never completes.
async fn unprepare_deleted(driver: &Driver) {
    let mut backoff = Backoff::default();
    while driver.unprepare_deleted().inspect_err(|error| warn!(error, "cannot check whether prepared claims exist")).await.is_err() {
        tokio::time::sleep(backoff.failed()).await;
    }
    std::future::pending().await
}
