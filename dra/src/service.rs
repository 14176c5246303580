//! The plugin as a service: it answers the kubelet, looks at the GPUs from time to time, and keeps the slices.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{TryFutureExt, pin_mut};
use kube::Client;
use tokio::sync::{Notify, watch};

use crate::checkpoint::Checkpoint;
use crate::discovery::GpuSource;
use crate::driver::Driver;
use crate::kubelet::Plugin;
use crate::options::Options;
use crate::reconcile::{Reconciler, watch_slices};
use crate::socket;
use crate::storage::Storage;

/// How long who is being answered is waited for at the end: less than what pods are given.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs until `stop` is there.
///
/// # Errors
/// The sockets, the checkpoint or the claims' files cannot be had. That the API server or the driver do not answer is no error: they
/// are asked again.
pub async fn run(
    options: &Options,
    client: Client,
    source: Arc<dyn GpuSource>,
    storage: Arc<dyn Storage>,
    say: fn(&str),
    stop: impl Future<Output = ()>,
) -> Result<(), String> {
    let checkpoint = Checkpoint(options.checkpoint_path());
    let driver = Arc::new(Driver::new(options.node.clone(), client.clone(), options.cdi_config(), checkpoint, storage)?);
    driver.restore().await?;
    let resync = Arc::new(Notify::new());
    let (health, healthy) = watch::channel(Vec::new());
    let mut reconciler = Reconciler::new(options, source, Arc::clone(&driver), health, say);
    // Before the kubelet can ask for anything, it is known what there is.
    reconciler.poll_devices().await;
    let (stopped, stopping) = watch::channel(());
    let until = || {
        let mut stopping = stopping.clone();
        async move { drop(stopping.changed().await) }
    };
    // The DRA services are there before the kubelet is told of them.
    let plugin = Plugin::new(Arc::clone(&driver), options.dra_socket(), Arc::clone(&resync), healthy, say);
    let (socket, registration) = (options.dra_socket(), options.registration_socket());
    let services = socket::serve(plugin.clone(), &socket, socket::listen(&socket)?, until());
    let registry = socket::serve(plugin, &registration, socket::listen(&registration)?, until());
    let slices = reconciler.run(client.clone(), options, &resync);
    let watch_slices = watch_slices(client, &options.node, &resync);
    let deleted = unprepare_deleted(&driver, say);
    let served = async { tokio::try_join!(services, registry).map(drop) };
    pin_mut!(served);
    tokio::select! {
        ended = &mut served => return ended,
        () = stop => {}
        () = slices => {}
        () = watch_slices => {}
        () = deleted => {}
    }
    // Slices stay: pods that have a share keep it, and an upgrade is back soon. The kubelet removes them if we are not.
    drop(stopped);
    // Or the kubelet would wait for what else we say of the devices, and we for the kubelet.
    drop(reconciler);
    // It may not answer at all.
    tokio::time::timeout(SHUTDOWN_TIMEOUT, served).await.unwrap_or(Ok(()))
}

/// Lets go of claims that are gone, once the API server can tell; then waits.
async fn unprepare_deleted(driver: &Driver, say: fn(&str)) {
    while driver.unprepare_deleted().inspect_err(|why| say(why)).await.is_err() {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    std::future::pending().await
}
