//! When the node's ResourceSlices are written: on a change, after a notification, from time to time, and after failures with growing waits.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::WatchParams;
use kube::{Api, Client};
use tokio::sync::Notify;
use tracing::warn;

use crate::backoff::Backoff;
use crate::cluster::describe;
use crate::slices::{Features, SlicePublisher};

/// Interval at which the slices are read even without a notification, as a watch may miss events.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// Time for the requests of one attempt.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Publication of devices as slices.
pub struct Publication {
    publisher: SlicePublisher,
    features: Features,
    backoff: Backoff,
    /// Error of the last attempt.
    error: Option<String>,
    /// Time of the next attempt after an error.
    retry_at: Instant,
    /// True if the slices may differ from those that were written last.
    may_have_changed: bool,
    last_read: Instant,
}

impl Publication {
    /// Returns a publication of this node's slices, which have not been read yet.
    #[must_use]
    pub fn new(client: Client, node: String) -> Self {
        Self {
            publisher: SlicePublisher::new(client, node),
            features: Features { sharing: true, taints: true },
            backoff: Backoff::default(),
            error: None,
            retry_at: Instant::now(),
            may_have_changed: true,
            last_read: Instant::now(),
        }
    }

    /// Returns true if the API server keeps the taints of devices.
    #[must_use]
    pub fn supports_taints(&self) -> bool {
        self.features.taints
    }

    /// Returns the error of the last attempt.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Returns how long to wait for the next attempt; `None` if the last one succeeded.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.error.as_ref().map(|_| self.retry_at.saturating_duration_since(Instant::now()))
    }

    /// Remembers that the slices may have changed. A notification while the API server fails does not shorten the wait: each failed attempt
    /// may cause one.
    pub fn notified(&mut self) {
        self.may_have_changed = true;
    }

    /// Returns the devices in the slices of an earlier process; `None` if the API server does not answer.
    pub async fn published_devices(&mut self) -> Option<Vec<Device>> {
        if self.retry_after().is_some_and(|wait| !wait.is_zero()) {
            return None;
        }
        let published = in_time(self.publisher.published_devices()).await;
        self.note(published)
    }

    /// Makes the slices contain these devices, unless an attempt failed shortly before. Returns false if the API server turned out to drop
    /// taints, so that other devices have to be published at once.
    pub async fn publish(&mut self, devices: &[Device]) -> bool {
        if self.retry_after().is_some_and(|wait| !wait.is_zero()) {
            return true;
        }
        self.may_have_changed |= self.error.is_some() || self.last_read.elapsed() >= RESYNC_INTERVAL;
        if self.may_have_changed {
            self.last_read = Instant::now();
        }
        let reconciled = in_time(self.publisher.reconcile(devices, self.may_have_changed)).await;
        let Some(found) = self.note(reconciled) else { return true };
        self.may_have_changed = false;
        if self.features.sharing && !found.sharing {
            warn!("the API server drops the sharing of devices: expected the feature gate DRAConsumableCapacity to be on");
        }
        // Without its taint a gone GPU would be given to other pods, so it must not be published.
        let has_taints = self.features.taints && found.taints;
        let is_final = found.taints;
        self.features = Features { sharing: found.sharing, taints: has_taints };
        is_final
    }

    /// Logs a new error, and sets the time of the next attempt.
    fn note<T>(&mut self, result: Result<T, String>) -> Option<T> {
        match result {
            Ok(value) => {
                self.backoff.succeeded();
                self.error = None;
                Some(value)
            }
            Err(error) => {
                if self.error.as_ref() != Some(&error) {
                    warn!(error, "cannot publish the slices");
                }
                self.error = Some(error);
                self.retry_at = Instant::now() + self.backoff.failed();
                None
            }
        }
    }
}

/// Returns the result of requests, or an error if they last too long.
async fn in_time<T>(requests: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(REQUEST_TIMEOUT, requests).await {
        Ok(result) => result.map_err(|error| describe(&error)),
        Err(_) => Err(format!("no answer from the API server within {} s", REQUEST_TIMEOUT.as_secs())),
    }
}

/// Notifies `resync` of every change to the node's slices: the kubelet deletes them when it starts. Never completes.
pub async fn watch_slices(client: Client, node: &str, resync: &Notify) {
    let slices: Api<ResourceSlice> = Api::all(client);
    let mut backoff = Backoff::default();
    loop {
        let events = slices.watch(&WatchParams::default().fields(&SlicePublisher::selector(node)), "0").await;
        if let Ok(events) = events {
            pin_mut!(events);
            while let Some(Ok(_)) = events.next().await {
                backoff.succeeded();
                resync.notify_one();
            }
        }
        tokio::time::sleep(backoff.failed()).await;
    }
}
