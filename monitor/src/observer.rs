//! Periodic sampling of all GPUs and containers.

mod share;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use vgpu_config::Inventory;
use vgpu_region::uuid::Uuid;

use crate::account::{Reader, Unreadable};
use crate::container::{self, Container, Files, Unknown};
use crate::gpus::{self, Gpus, State};
use crate::inventory::KnownGpus;
use crate::ownership::ProcessOwners;
use crate::process_table::ProcessTable;
use crate::processes::Process;
use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};
use share::{ObservedGpu, Previous, Sampling};

/// Time after which a failed NVML is loaded again. The driver may be installed after the monitor, as by NVIDIA's GPU Operator.
const NVML_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Sampler of a host's GPUs and containers.
#[derive(Debug)]
pub struct Observer {
    state_dir: PathBuf,
    nvml: Result<Gpus, String>,
    /// Time of the last attempt to load NVML.
    opened: Instant,
    inventory: Inventory,
    known_gpus: KnownGpus,
    reader: Reader,
    files: Files,
    owners: ProcessOwners,
    processes: ProcessTable,
    /// GPUs by the container's bundle, as bundles do not change and are slow to read. Keys have the creation time.
    bundles: HashMap<(PathBuf, u64), Vec<Uuid>>,
    previous: HashMap<(PathBuf, Uuid), Previous>,
}

impl Observer {
    /// Returns an observer of the containers in a state directory, and of this machine's GPUs if NVML is available.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        let mut this = Self {
            state_dir: state_dir.to_owned(),
            nvml: Err(String::new()),
            opened: Instant::now(),
            inventory: Inventory::default(),
            known_gpus: KnownGpus::default(),
            reader: Reader::default(),
            files: Files::default(),
            owners: ProcessOwners::default(),
            processes: ProcessTable::default(),
            bundles: HashMap::new(),
            previous: HashMap::new(),
        };
        this.set_inventory(Inventory::load(state_dir).ok().flatten().unwrap_or_default());
        this.open_nvml();
        this
    }

    fn open_nvml(&mut self) {
        self.opened = Instant::now();
        let opened = Gpus::open().and_then(|gpus| Ok((gpus.inventory()?, gpus)));
        self.nvml = opened.map_err(|error| gpus::explain(&error)).map(|(inventory, gpus)| {
            self.set_inventory(inventory);
            gpus
        });
    }

    fn set_inventory(&mut self, inventory: Inventory) {
        self.known_gpus = KnownGpus::new(&inventory);
        self.inventory = inventory;
        self.bundles.clear();
    }

    /// Returns the GPUs of this machine according to NVML, or to the inventory file without NVML.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Returns the reason why NVML is unavailable.
    #[must_use]
    pub fn nvml_error(&self) -> Option<&str> {
        self.nvml.as_ref().err().map(String::as_str)
    }

    /// Returns whether a process belonged to the container with this directory name at the last sample.
    #[must_use]
    pub fn is_in_container(&self, process: &Process, dir_name: &str) -> bool {
        self.owners.is_in_container(process, dir_name)
    }

    /// Takes a sample.
    pub fn sample(&mut self) -> Snapshot {
        self.sample_of(|_| true)
    }

    /// Takes a sample of the containers whose directories `is_wanted` accepts, and of those whose record cannot be read.
    pub fn sample_of(&mut self, is_wanted: impl Fn(&Path) -> bool) -> Snapshot {
        if self.nvml.is_err() && self.opened.elapsed() > NVML_RETRY_INTERVAL {
            self.open_nvml();
        }
        let (containers, unknown) = container::list_again(&self.state_dir, &mut self.reader, &mut self.files);
        self.processes.begin_look();
        let owners = self.owners.next(&containers, &mut self.processes);
        let states = self.gpu_states();
        let found: Vec<ObservedGpu> = states.into_iter().map(|state| ObservedGpu::new(state, &owners, &mut self.processes)).collect();
        let unix_time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let look = Look { found: &found, now: Instant::now(), unix_time };
        let mut previous = std::mem::take(&mut self.previous);
        let mut states = Vec::new();
        for (index, container) in containers.iter().enumerate().filter(|(_, container)| is_wanted(&container.dir)) {
            let shares = self.shares(&look, index, container, &mut previous);
            states.push(container_state(container, shares, owners.init(index)));
        }
        states.extend(unknown.iter().map(unknown_state));
        let live: HashSet<(&Path, u64)> = containers.iter().map(|container| (&*container.dir, container.record.created)).collect();
        self.bundles.retain(|(dir, created), _| live.contains(&(&**dir, *created)));
        self.owners = owners;
        Snapshot {
            time: unix_time,
            nvml_error: self.nvml_error().map(str::to_owned),
            gpus: gpus(&self.inventory, &found),
            containers: states,
        }
    }

    /// Returns a container's shares of its GPUs, and of others on which NVML lists its processes.
    fn shares(
        &mut self,
        look: &Look<'_>,
        index: usize,
        container: &Container,
        previous: &mut HashMap<(PathBuf, Uuid), Previous>,
    ) -> Vec<Share> {
        let by_bundle = self.gpus_by_bundle(container);
        let mut uuids = container.gpus(&by_bundle, &self.known_gpus);
        let used = look.found.iter().filter(|gpu| gpu.has_processes_of(index)).filter_map(|gpu| gpu.uuid);
        uuids.extend(used.filter(|uuid| !uuids.contains(uuid)).collect::<Vec<_>>());
        let share = |(nth, uuid): (usize, Uuid)| {
            let gpu = look.found.iter().find(|gpu| gpu.uuid == Some(uuid));
            let key = (container.dir.clone(), uuid);
            let sampling = Sampling { container, index, uuid, nth, gpu, now: look.now, unix_time: look.unix_time };
            let mut share = sampling.share(self.known_gpus.memory(uuid));
            let rates = sampling.rates(&mut share, previous.get(&key));
            self.previous.insert(key, rates);
            share
        };
        uuids.into_iter().enumerate().map(share).collect()
    }

    /// Returns the GPUs' states. Gives NVML up for a while if it reports none.
    fn gpu_states(&mut self) -> Vec<State> {
        let states = self.nvml.as_mut().map(|nvml| nvml.states(&self.inventory)).unwrap_or_default();
        if states.is_empty() && !self.inventory.gpus.is_empty() && self.nvml.is_ok() {
            // The driver was reloaded, or all GPUs are lost.
            (self.nvml, self.opened) = (Err("it no longer reports any GPU".to_owned()), Instant::now());
        }
        states
    }

    fn gpus_by_bundle(&mut self, container: &Container) -> Vec<Uuid> {
        let read = || container.by_bundle(&self.inventory).unwrap_or_default();
        self.bundles.entry((container.dir.clone(), container.record.created)).or_insert_with(read).clone()
    }
}

/// GPUs and time of one sample.
struct Look<'a> {
    found: &'a [ObservedGpu],
    now: Instant,
    /// `now` in seconds since 1970.
    unix_time: f64,
}

fn gpus(inventory: &Inventory, found: &[ObservedGpu]) -> Vec<Gpu> {
    let gpu = |known: &vgpu_config::inventory::Gpu| {
        let observed = found.iter().find(|found| found.state.uuid == known.uuid);
        let (state, unlimited) = (observed.map(|gpu| &gpu.state), observed.map(|gpu| &gpu.unlimited));
        Gpu {
            index: known.index,
            uuid: known.uuid.clone(),
            name: known.name.clone(),
            memory: known.memory,
            memory_used: state.map(|state| state.memory_used),
            utilization: state.and_then(|state| state.utilization),
            processes_known: state.is_some_and(|state| state.processes.is_some()),
            unlimited: unlimited.cloned().unwrap_or_default(),
        }
    };
    inventory.gpus.iter().map(gpu).collect()
}

/// Returns a path of the limits page. `None` if it is empty.
fn path_text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok().filter(|path| !path.is_empty())
}

fn dir_name(dir: &Path) -> String {
    dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Returns the state of a container whose record cannot be read. Its directory usually has its ID as the name.
fn unknown_state(unknown: &Unknown) -> ContainerState {
    let name = dir_name(&unknown.dir);
    ContainerState { id: name.clone(), dir_name: name, damaged: Some(unknown.reason.clone()), ..ContainerState::default() }
}

fn container_state(container: &Container, gpus: Vec<Share>, init: Option<&Process>) -> ContainerState {
    let record = &container.record;
    ContainerState {
        id: record.id.clone(),
        dir_name: dir_name(&container.dir),
        container: record.container.clone(),
        pod: record.pod.clone(),
        namespace: record.namespace.clone(),
        engine_name: container.engine_name.as_ref().map(|given| given.name.clone()),
        named_by: container.engine_name.as_ref().map(|given| given.engine),
        created: record.created,
        priority: container.limits.priority(),
        changes: container.limits.generation.load(Relaxed),
        damaged: container.damage(),
        is_tampered: container.account.as_ref().err().is_some_and(Unreadable::is_tampered),
        is_mps: container.limits.is_mps(),
        gpus,
        init: init.map(|init| init.pid),
        init_started: init.map(|init| init.start_time),
        hami_cache: path_text(container.limits.hami_cache()),
        trace_dir: path_text(container.limits.trace_dir()),
    }
}

#[cfg(test)]
mod tests;
