//! Reconciliation loop: polls the GPUs, keeps the node's ResourceSlices and reports device health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::resource::v1::Device;
use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use crate::devices::{self, with_taint};
use crate::discovery::{GpuSource, Machine};
use crate::driver::Driver;
use crate::health;
use crate::names::{FAULT_TAINT, GONE_TAINT};
use crate::options::Options;
use crate::proto::{DeviceHealth, HealthStatus};
use crate::publication::Publication;
use crate::status::Status;

/// Number of poll intervals within which a poll must end, and for which health reports are valid.
const POLL_INTERVALS: u64 = 3;

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
    /// Faults of devices that are present.
    faults: BTreeMap<String, String>,
    /// Devices of `seen` that are not present, and when that was first noticed.
    missing: BTreeMap<String, Instant>,
    /// Time for a poll, and for which a health report is valid.
    timeout: Duration,
    /// Time after which pods are evicted from a missing device; `None` for never.
    evict_after: Option<Duration>,
    /// Poll that has not ended in time.
    running: Option<JoinHandle<Result<Machine, String>>>,
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
            faults: BTreeMap::new(),
            missing: BTreeMap::new(),
            timeout: Duration::from_secs(POLL_INTERVALS * options.poll_interval_s),
            evict_after: options.evict_after_s.map(Duration::from_secs),
            running: None,
            poll_error: None,
        }
    }

    /// Polls the GPUs, passes them to the driver and returns their devices. If the poll fails, no device is present.
    pub async fn poll_devices(&mut self) -> BTreeMap<String, Device> {
        let (machine, poll_error) = match self.discover().await {
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
        let faults = local.iter().filter_map(|(name, local)| Some((name.clone(), local.fault.clone()?)));
        let faults: BTreeMap<_, _> = faults.collect();
        for (device, fault) in faults.iter().filter(|(device, _)| !self.faults.contains_key(*device)) {
            warn!(device, fault, "device has a fault");
        }
        self.faults = faults;
        self.driver.set_present(local).await;
        devices
    }

    /// Asks the source, and waits for its answer for a limited time: NVML may hang with the driver. A poll that hangs is waited for again,
    /// rather than joined by others.
    async fn discover(&mut self) -> Result<Machine, String> {
        let source = Arc::clone(&self.source);
        let mut poll = self.running.take().unwrap_or_else(|| tokio::task::spawn_blocking(move || source.discover()));
        match tokio::time::timeout(self.timeout, &mut poll).await {
            Ok(ended) => ended.unwrap_or_else(|error| Err(error.to_string())),
            Err(_) => {
                self.running = Some(poll);
                Err(format!("no answer within {} s: expected NVML to answer", self.timeout.as_secs()))
            }
        }
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
                reports.push(health::device_health(&self.node, name, status, message, self.timeout));
            };
            if let Some(fault) = self.faults.get(name) {
                report(HealthStatus::Unhealthy, fault);
                return taints.then(|| with_taint(device.clone(), FAULT_TAINT, "NoSchedule"));
            }
            if present.contains_key(name) {
                report(HealthStatus::Healthy, "");
                return Some(device.clone());
            }
            // New pods stay away at once. Containers may still work while NVML is silent, so that silence never evicts their pods, and a GPU
            // that NVML no longer lists does so only if the operator wants it.
            let effect = match &self.poll_error {
                Some(error) => {
                    self.missing.remove(name);
                    report(HealthStatus::Unknown, &format!("cannot discover GPUs: {error}"));
                    "NoSchedule"
                }
                None => {
                    let since = self.missing.entry(name.clone()).or_insert_with(Instant::now);
                    report(HealthStatus::Unhealthy, &devices::not_present(name));
                    if self.evict_after.is_some_and(|limit| since.elapsed() >= limit) { "NoExecute" } else { "NoSchedule" }
                }
            };
            taints.then(|| with_taint(device.clone(), GONE_TAINT, effect))
        };
        let devices = self.seen.iter().filter_map(to_publish).collect();
        self.health.send_replace(reports);
        devices
    }

    /// Remembers the published devices that claims use, so that GPUs that disappeared while the plugin was down are tainted too.
    async fn adopt(&mut self, published: Vec<Device>) {
        let in_use = self.driver.devices_in_use().await;
        let used = published.into_iter().filter(|device| in_use.contains(&device.name));
        self.seen.extend(used.map(|device| (device.name.clone(), device)));
    }

    /// Runs the loop: one round every poll interval, or as soon as `resync` is notified. Never completes.
    pub async fn run(&mut self, client: Client, options: &Options, resync: &Notify, status: &Status) {
        let mut publication = Publication::new(client, options.node.clone());
        let mut has_adopted = false;
        loop {
            if !has_adopted && let Some(published) = publication.published_devices().await {
                self.adopt(published).await;
                has_adopted = true;
            }
            let devices = self.desired_devices(publication.supports_taints()).await;
            let is_final = publication.publish(&devices).await;
            status.round(self.present.len(), self.poll_error.as_deref(), publication.error());
            if !is_final {
                continue;
            }
            let interval = Duration::from_secs(options.poll_interval_s);
            let wait = publication.retry_after().map_or(interval, |retry| retry.min(interval));
            if tokio::time::timeout(wait, resync.notified()).await.is_ok() {
                publication.notified();
            }
        }
    }
}
