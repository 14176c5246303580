//! Reconciliation loop: polls the GPUs, keeps the node's ResourceSlices and reports device health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::WatchParams;
use kube::{Api, Client};
use tokio::sync::{Notify, watch};
use tracing::warn;

use crate::cluster::describe;
use crate::devices::{self, with_taint};
use crate::discovery::{GpuSource, Machine};
use crate::driver::Driver;
use crate::health;
use crate::options::Options;
use crate::proto::{DeviceHealth, HealthStatus};
use crate::slices::{Features, SlicePublisher};

/// Interval at which the slices are read even without a notification, as a watch may miss events.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// Number of poll intervals after which a missing GPU counts as gone.
const GONE_POLLS: u64 = 3;
/// Maximum wait before the next attempt after the slices could not be published.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Polls the GPUs and publishes them as slices and health reports.
pub struct Reconciler {
    node: String,
    /// Health reports for the kubelet.
    health: watch::Sender<Vec<DeviceHealth>>,
    source: Arc<dyn GpuSource>,
    driver: Arc<Driver>,
    /// Devices seen since the start that are present or in use, as last published.
    seen: BTreeMap<String, Device>,
    /// Names of the devices that the last poll found.
    present: Vec<String>,
    /// Devices of `seen` that are not present, and when that was first noticed.
    missing: BTreeMap<String, Instant>,
    /// Time after which a missing device counts as gone.
    gone_timeout: Duration,
    /// Reason why the last poll failed.
    poll_error: Option<String>,
}

impl Reconciler {
    /// Returns a reconciler that has not polled yet.
    #[must_use]
    pub fn new(options: &Options, source: Arc<dyn GpuSource>, driver: Arc<Driver>, health: watch::Sender<Vec<DeviceHealth>>) -> Self {
        Self {
            node: options.node.clone(),
            health,
            source,
            driver,
            seen: BTreeMap::new(),
            present: Vec::new(),
            missing: BTreeMap::new(),
            gone_timeout: Duration::from_secs(GONE_POLLS * options.poll_interval_s),
            poll_error: None,
        }
    }

    /// Polls the GPUs, passes them to the driver and returns their devices. If the poll fails, no device is present.
    pub async fn poll_devices(&mut self) -> BTreeMap<String, Device> {
        let source = Arc::clone(&self.source);
        let polled = tokio::task::spawn_blocking(move || source.discover()).await.unwrap_or_else(|error| Err(error.to_string()));
        let (machine, poll_error) = match polled {
            Ok(machine) => (machine, None),
            Err(error) => (Machine::default(), Some(error)),
        };
        if poll_error != self.poll_error {
            if let Some(error) = &poll_error {
                warn!(error, "cannot discover GPUs");
            }
            self.poll_error = poll_error;
        }
        let all = devices::of_machine(&machine);
        for device in self.present.iter().filter(|device| !all.contains_key(*device)) {
            warn!(device, "device not found or not responding");
        }
        self.present = all.keys().cloned().collect();
        let (local, devices): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().map(|(name, (local, device))| ((name.clone(), local), (name, device))).unzip();
        self.driver.set_present(local).await;
        devices
    }

    /// Polls the GPUs, reports their health and returns the devices to publish: those present and, if `taints` are supported, those that
    /// are missing while claims use them.
    async fn desired_devices(&mut self, taints: bool) -> Vec<Device> {
        let present = self.poll_devices().await;
        let in_use = self.driver.devices_in_use().await;
        self.seen.retain(|name, _| present.contains_key(name) || in_use.contains(name));
        self.seen.extend(present.clone());
        self.missing.retain(|name, _| self.seen.contains_key(name) && !present.contains_key(name));
        let mut reports = Vec::new();
        let to_publish = |(name, device): (&String, &Device)| {
            let mut report = |status, message: &str| {
                reports.push(health::device_health(&self.node, name, status, message, self.gone_timeout));
            };
            if present.contains_key(name) {
                report(HealthStatus::Healthy, "");
                return Some(device.clone());
            }
            // New pods stay away at once. Pods that use the device are evicted only if this was not a single failure of NVML.
            let since = self.missing.entry(name.clone()).or_insert_with(Instant::now);
            let is_gone = since.elapsed() >= self.gone_timeout;
            match &self.poll_error {
                Some(error) => {
                    let status = if is_gone { HealthStatus::Unhealthy } else { HealthStatus::Unknown };
                    report(status, &format!("cannot discover GPUs: {error}"));
                }
                None => report(HealthStatus::Unhealthy, &devices::not_present(name)),
            }
            taints.then(|| with_taint(device.clone(), if is_gone { "NoExecute" } else { "NoSchedule" }))
        };
        let devices = self.seen.iter().filter_map(to_publish).collect();
        self.health.send_replace(reports);
        devices
    }

    /// Remembers the published devices that claims use, so that GPUs that disappeared while the plugin was down are tainted too. Returns
    /// false if the API server did not answer.
    async fn adopt_published(&mut self, publisher: &SlicePublisher) -> bool {
        let Ok(published) = publisher.published_devices().await else { return false };
        let in_use = self.driver.devices_in_use().await;
        let used = published.into_iter().filter(|device| in_use.contains(&device.name));
        self.seen.extend(used.map(|device| (device.name.clone(), device)));
        true
    }

    /// Runs the loop: one round every poll interval, or as soon as `resync` is notified. Never completes.
    pub async fn run(&mut self, client: Client, options: &Options, resync: &Notify) {
        let mut publisher = SlicePublisher::new(client, options.node.clone());
        let mut features = Features { sharing: true, taints: true };
        let (mut last_error, mut may_have_changed, mut last_read) = (None, true, Instant::now());
        let mut has_adopted = false;
        loop {
            has_adopted = has_adopted || self.adopt_published(&publisher).await;
            let devices = self.desired_devices(features.taints).await;
            let mut wait = Duration::from_secs(options.poll_interval_s);
            if may_have_changed {
                last_read = Instant::now();
            }
            match publisher.reconcile(&devices, may_have_changed).await {
                Ok(Features { taints: false, .. }) => {
                    // Without its taint a gone GPU would be given to other pods, so it must not be published.
                    features.taints = false;
                    continue;
                }
                Ok(Features { sharing, .. }) => {
                    if features.sharing && !sharing {
                        warn!("the API server drops the sharing of devices: expected the feature gate DRAConsumableCapacity to be on");
                    }
                    features.sharing = sharing;
                    last_error = None;
                }
                Err(error) => {
                    let error = describe(&error);
                    if last_error.as_ref() != Some(&error) {
                        warn!(error, "cannot publish the slices");
                    }
                    last_error = Some(error);
                    wait = wait.min(RETRY_INTERVAL);
                }
            }
            let notified = tokio::time::timeout(wait, resync.notified()).await.is_ok();
            may_have_changed = notified || last_error.is_some() || last_read.elapsed() >= RESYNC_INTERVAL;
        }
    }
}

/// Notifies `resync` of every change to the node's slices: the kubelet deletes them when it starts. Never completes.
pub async fn watch_slices(client: Client, node: &str, resync: &Notify) {
    let slices: Api<ResourceSlice> = Api::all(client);
    loop {
        let events = slices.watch(&WatchParams::default().fields(&SlicePublisher::selector(node)), "0").await;
        if let Ok(events) = events {
            pin_mut!(events);
            while let Some(Ok(_)) = events.next().await {
                resync.notify_one();
            }
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
