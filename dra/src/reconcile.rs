//! The slices' side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::WatchParams;
use kube::{Api, Client};
use tokio::sync::{Notify, watch};

use crate::cluster::describe;
use crate::devices::{self, with_taint};
use crate::discovery::GpuSource;
use crate::driver::Driver;
use crate::health;
use crate::options::Options;
use crate::proto::{DeviceHealth, HealthStatus};
use crate::slices::{Features, SlicePublisher};

/// The longest time in which the slices are not looked at.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);

/// Looks at the GPUs, and has the slices tell of them.
pub struct Reconciler {
    node: String,
    /// What the kubelet is told.
    health: watch::Sender<Vec<DeviceHealth>>,
    source: Arc<dyn GpuSource>,
    driver: Arc<Driver>,
    /// Every device seen since the start, as it was told of last.
    seen: BTreeMap<String, Device>,
    /// The names of those that were there at the last look.
    present: Vec<String>,
    /// Since when others have not been.
    missing: BTreeMap<String, Instant>,
    /// After what time that is for good.
    gone_timeout: Duration,
    problem: Option<String>,
    say: fn(&str),
}

impl Reconciler {
    /// One that has not looked yet.
    #[must_use]
    pub fn new(
        options: &Options,
        source: Arc<dyn GpuSource>,
        driver: Arc<Driver>,
        health: watch::Sender<Vec<DeviceHealth>>,
        say: fn(&str),
    ) -> Self {
        Self {
            node: options.node.clone(),
            health,
            source,
            driver,
            seen: BTreeMap::new(),
            present: Vec::new(),
            missing: BTreeMap::new(),
            gone_timeout: Duration::from_secs(3 * options.poll_interval_s),
            problem: None,
            say,
        }
    }

    /// What is there now. That nothing can be told means that nothing works.
    pub async fn poll_devices(&mut self) -> BTreeMap<String, Device> {
        let source = Arc::clone(&self.source);
        let looked = tokio::task::spawn_blocking(move || source.discover()).await.unwrap_or_else(|error| Err(error.to_string()));
        let (machine, problem) = match looked {
            Ok(machine) => (machine, None),
            Err(why) => (crate::discovery::Machine::default(), Some(format!("the GPUs cannot be looked at: {why}"))),
        };
        if problem != self.problem {
            if let Some(problem) = &problem {
                (self.say)(problem);
            }
            self.problem = problem;
        }
        let all = devices::of_machine(&machine);
        for name in self.present.iter().filter(|name| !all.contains_key(*name)) {
            (self.say)(&format!("{name} is not there or does not work any more"));
        }
        self.present = all.keys().cloned().collect();
        let (known, devices): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().map(|(name, (known, device))| ((name.clone(), known), (name, device))).unzip();
        self.driver.set_present(known).await;
        devices
    }

    /// What is to be told: what is there and, with a taint, what is gone while claims have it.
    async fn desired_devices(&mut self, taints: bool) -> Vec<Device> {
        let present = self.poll_devices().await;
        let in_use = self.driver.devices_in_use().await;
        self.seen.retain(|name, _| present.contains_key(name) || in_use.contains(name));
        self.seen.extend(present.clone());
        self.missing.retain(|name, _| self.seen.contains_key(name) && !present.contains_key(name));
        let mut health = Vec::new();
        let tell = |(name, device): (&String, &Device)| {
            let mut say = |how, message: &str| health.push(health::device_health(&self.node, name, how, message, self.gone_timeout));
            if present.contains_key(name) {
                say(HealthStatus::Healthy, "");
                return Some(device.clone());
            }
            // Nobody else gets it. Who has it has to leave only if it was not NVML that could not tell for once.
            let since = self.missing.entry(name.clone()).or_insert_with(Instant::now);
            let lasting = since.elapsed() >= self.gone_timeout;
            match &self.problem {
                Some(problem) => say(if lasting { HealthStatus::Unhealthy } else { HealthStatus::Unknown }, problem),
                None => say(HealthStatus::Unhealthy, "it is not there or does not work any more"),
            }
            taints.then(|| with_taint(device.clone(), if lasting { "NoExecute" } else { "NoSchedule" }))
        };
        let told = self.seen.iter().filter_map(tell).collect();
        self.health.send_replace(health);
        told
    }

    /// Keeps the slices for ever.
    pub async fn run(&mut self, client: Client, options: &Options, resync: &Notify) {
        let mut publisher = SlicePublisher::new(client, options.node.clone());
        let (mut taints, mut shared) = (true, true);
        let (mut problem, mut may_have_changed, mut asked) = (None, true, Instant::now());
        let mut has_read_published = false;
        loop {
            // A GPU that went while we were not present: those who have it have to leave all the same.
            if !has_read_published && let Ok(devices) = publisher.published_devices().await {
                let in_use = self.driver.devices_in_use().await;
                let used = devices.into_iter().filter(|device| in_use.contains(&device.name));
                self.seen.extend(used.map(|device| (device.name.clone(), device)));
                has_read_published = true;
            }
            let told = self.desired_devices(taints).await;
            let mut wait = Duration::from_secs(options.poll_interval_s);
            if may_have_changed {
                asked = Instant::now();
            }
            match publisher.reconcile(&told, may_have_changed).await {
                Ok(Features { taints: false, .. }) => {
                    // Without its taint a GPU that is gone would be given to others, so it must not be told of.
                    taints = false;
                    continue;
                }
                Ok(features) => {
                    if shared && !features.sharing {
                        (self.say)("the API server drops what makes GPUs divisible: its feature gate DRAConsumableCapacity is off");
                    }
                    shared = features.sharing;
                    problem = None;
                }
                Err(error) => {
                    let why = format!("the slices are not as they should be: {}", describe(&error));
                    if problem.as_ref() != Some(&why) {
                        (self.say)(&why);
                    }
                    problem = Some(why);
                    wait = wait.min(Duration::from_secs(1));
                }
            }
            let notified = tokio::time::timeout(wait, resync.notified()).await.is_ok();
            // What a watch misses is found in the end.
            may_have_changed = notified || problem.is_some() || asked.elapsed() >= RESYNC_INTERVAL;
        }
    }
}

/// Notices when somebody changes the slices: the kubelet drops them when it starts.
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
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
