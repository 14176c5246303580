//! Looks at everything, again and again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use vgpu_config::{Inventory, devices};
use vgpu_region::uuid::Uuid;

use crate::account::{self, Account, Reader};
use crate::container::{self, Container};
use crate::gpus::{self, Gpus, Holder, State};
use crate::ownership::{Identity, ProcessOwners};
use crate::processes::Process;
use crate::snapshot::{ContainerState, Gpu, GpuProcess, Share, Snapshot};

/// What was seen of a share before.
#[derive(Clone, Copy, Debug)]
struct Previous {
    at: Instant,
    used: u64,
    waited: u64,
    activity: (u64, Option<f64>),
    rates: (Option<f64>, Option<f64>),
}

/// Rates are measured over at least this long.
const MIN_RATE_INTERVAL: Duration = Duration::from_millis(100);

/// Looks, again and again.
#[derive(Debug)]
pub struct Observer {
    state_dir: PathBuf,
    nvml: Result<Gpus, String>,
    opened: Instant,
    inventory: Inventory,
    reader: Reader,
    owners: ProcessOwners,
    identities: HashMap<PathBuf, Identity>,
    bundles: HashMap<(PathBuf, u64), Vec<Uuid>>,
    before: HashMap<(PathBuf, Uuid), Previous>,
}

/// How long to wait before NVML is tried again.
const NVML_RETRY_INTERVAL: Duration = Duration::from_secs(10);

impl Observer {
    /// Looks at this state directory's containers, and at this machine's GPUs if NVML can be had.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        let mut this = Self {
            state_dir: state_dir.to_owned(),
            nvml: Err(String::new()),
            opened: Instant::now(),
            inventory: Inventory::load(state_dir).ok().flatten().unwrap_or_default(),
            reader: Reader::default(),
            owners: ProcessOwners::default(),
            identities: HashMap::new(),
            bundles: HashMap::new(),
            before: HashMap::new(),
        };
        this.open();
        this
    }

    fn open(&mut self) {
        self.opened = Instant::now();
        let opened = Gpus::open().and_then(|gpus| Ok((gpus.inventory()?, gpus)));
        self.nvml = opened.map_err(|error| gpus::explain(&error)).map(|(inventory, gpus)| {
            self.inventory = inventory;
            self.bundles.clear();
            gpus
        });
    }

    /// The GPUs of this machine, as NVML or else the inventory's file tells.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Why NVML tells nothing, if it does not.
    #[must_use]
    pub fn nvml_error(&self) -> Option<&str> {
        self.nvml.as_ref().err().map(String::as_str)
    }

    /// Whether a process belongs to a container, the name of whose folder is given, as things were at the last look.
    #[must_use]
    pub fn is_of(&self, process: &Process, place: &str) -> bool {
        self.owners.is_of(process, place)
    }

    /// Looks now.
    pub fn sample(&mut self) -> Snapshot {
        if self.nvml.is_err() && self.opened.elapsed() > NVML_RETRY_INTERVAL {
            self.open();
        }
        let containers = container::list(&self.state_dir, &mut self.reader);
        let owners = ProcessOwners::of(&containers, &mut self.identities);
        let states = self.nvml.as_ref().map(|nvml| nvml.states(&self.inventory)).unwrap_or_default();
        if states.is_empty() && !self.inventory.gpus.is_empty() && self.nvml.is_ok() {
            // The driver was reloaded, or every GPU is lost: begin anew, after a while.
            (self.nvml, self.opened) = (Err("it no longer tells of any GPU".to_owned()), Instant::now());
        }
        let found: Vec<ObservedGpu> = states.into_iter().map(|state| ObservedGpu::new(state, &owners)).collect();
        let now = (Instant::now(), SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
        let mut snapshot = Snapshot {
            time: now.1,
            nvml_error: self.nvml.as_ref().err().cloned(),
            gpus: gpus(&self.inventory, &found),
            containers: Vec::new(),
        };
        let mut seen = HashMap::new();
        for (place, container) in containers.iter().enumerate() {
            let by_bundle = self.by_bundle(container);
            let uuids = container.gpus(&by_bundle, &self.inventory);
            let mut shares = Vec::new();
            for (nth, &uuid) in uuids.iter().enumerate() {
                let gpu = found.iter().find(|gpu| devices::uuid(&gpu.state.uuid) == Some(uuid));
                let mut share = share(container, place, uuid, nth, gpu, &self.inventory);
                let key = (container.place.clone(), uuid);
                seen.insert(key.clone(), rates(&mut share, self.before.get(&key), now, container, uuid, gpu, place));
                shares.push(share);
            }
            snapshot.containers.push(state(container, shares, owners.init(place)));
        }
        (self.before, self.owners) = (seen, owners);
        self.bundles.retain(|(place, _), _| containers.iter().any(|container| container.place == *place));
        snapshot
    }

    /// A bundle does not change, and takes a while to read.
    fn by_bundle(&mut self, container: &Container) -> Vec<Uuid> {
        let record = &container.record;
        let read = || container.by_bundle(&self.inventory).unwrap_or_default();
        self.bundles.entry((container.place.clone(), record.created)).or_insert_with(read).clone()
    }
}

/// A GPU, and its processes with the containers that they belong to.
struct ObservedGpu {
    state: State,
    processes: Vec<(Holder, Process, Option<usize>)>,
}

impl ObservedGpu {
    fn new(mut state: State, owners: &ProcessOwners) -> Self {
        let known = |holder: &Holder| {
            let process = Process::read(holder.pid)?;
            let container = owners.container_of(&process);
            Some((*holder, process, container))
        };
        let processes: Vec<_> = state.processes.iter().flatten().filter_map(known).collect();
        // NVML's PIDs are the host's: who sees none of them is in another PID namespace, and cannot tell whose they are.
        if processes.is_empty() && state.processes.as_ref().is_some_and(|listed| !listed.is_empty()) {
            state.processes = None;
        }
        Self { state, processes }
    }

    fn of_container(&self, place: usize) -> impl Iterator<Item = &(Holder, Process, Option<usize>)> {
        self.processes.iter().filter(move |(_, _, container)| *container == Some(place))
    }
}

fn gpus(inventory: &Inventory, found: &[ObservedGpu]) -> Vec<Gpu> {
    let gpu = |known: &vgpu_config::inventory::Gpu| {
        let state = found.iter().map(|found| &found.state).find(|state| state.uuid == known.uuid);
        Gpu {
            index: known.index,
            uuid: known.uuid.clone(),
            name: known.name.clone(),
            memory: known.memory,
            memory_used: state.map(|state| state.memory_used),
            utilization: state.and_then(|state| state.utilization),
            processes_known: state.is_some_and(|state| state.processes.is_some()),
        }
    };
    inventory.gpus.iter().map(gpu).collect()
}

/// A path of the limits page, where there is one.
fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok().filter(|path| !path.is_empty())
}

fn state(container: &Container, gpus: Vec<Share>, init: Option<&Process>) -> ContainerState {
    let record = &container.record;
    ContainerState {
        id: record.id.clone(),
        place: container.place.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        container: record.container.clone(),
        pod: record.pod.clone(),
        namespace: record.namespace.clone(),
        created: record.created,
        priority: container.limits.priority(),
        changes: container.limits.generation.load(Relaxed),
        damaged: container.account.as_ref().err().map(ToString::to_string),
        gpus,
        init: init.map(|init| init.pid),
        hami_cache: text(container.limits.hami_cache()),
        trace_dir: text(container.limits.trace_dir()),
    }
}

fn share(container: &Container, place: usize, uuid: Uuid, nth: usize, gpu: Option<&ObservedGpu>, inventory: &Inventory) -> Share {
    let text = gpu.map_or_else(|| uuid.to_string(), |gpu| gpu.state.uuid.clone());
    let limit = container.limit(uuid, nth);
    let whole = inventory.gpus.iter().map(|gpu| (&gpu.uuid, gpu.memory));
    let pieces = inventory.gpus.iter().flat_map(|gpu| &gpu.mig).map(|mig| (&mig.uuid, mig.memory));
    let total = whole.chain(pieces).find(|(known, _)| devices::uuid(known) == Some(uuid)).map_or(0, |(_, memory)| memory);
    let nothing = Account::default();
    let account = container.account.as_ref().unwrap_or(&nothing);
    let of_gpu = account.gpus.iter().position(|gpu| gpu.uuid == uuid);
    let charge = |process: &account::Process| of_gpu.and_then(|at| process.charges.get(at)).copied().unwrap_or_default();
    let listed: Vec<_> = gpu.into_iter().flat_map(|gpu| gpu.of_container(place)).collect();
    let processes_known = gpu.is_some_and(|gpu| gpu.state.processes.is_some());
    let mut members = Vec::new();
    for (holder, process, _) in &listed {
        let own = account.processes.iter().find(|own| own.pid == process.inner);
        members.push(GpuProcess {
            pid: Some(process.pid),
            inner: process.inner,
            started: process.started,
            name: process.name.clone(),
            charged: own.map(|own| charge(own).most),
            overhead: own.map_or(0, |own| charge(own).overhead),
            held: holder.memory,
            listed: true,
            in_between: process.ended || own.is_some_and(|own| own.making_context),
        });
    }
    for own in account.processes.iter().filter(|own| charge(own).most != 0) {
        if listed.iter().all(|(_, process, _)| process.inner != own.pid) {
            let (charged, overhead) = (Some(charge(own).most), charge(own).overhead);
            members.push(GpuProcess { inner: own.pid, charged, overhead, in_between: own.making_context, ..GpuProcess::default() });
        }
    }
    let figures = of_gpu.and_then(|at| account.gpus.get(at)).copied();
    let sum = |part: fn(account::Charge) -> u64| account.processes.iter().map(|own| part(charge(own))).fold(0, u64::saturating_add);
    Share {
        memory_limit: limit.and_then(|limit| limit.memory_for(total)),
        cores: limit.and_then(|limit| limit.cores_limit()),
        cores_soft: limit.map(|limit| limit.cores_soft.load(Relaxed)).filter(|percent| *percent != 0),
        charged: figures.map_or(0, |gpu| gpu.charged),
        overhead: sum(|charge| charge.overhead),
        managed: sum(|charge| charge.managed),
        spilled: figures.map_or(0, |gpu| gpu.spilled),
        held: processes_known.then(|| listed.iter().filter_map(|(holder, ..)| holder.memory).sum()),
        refused: figures.map_or(0, |gpu| gpu.refused),
        first_refusal: figures.map(|gpu| gpu.first_refusal).filter(|&at| at != 0).map(|at| at as f64 / 1e9),
        used_ns: figures.map_or(0, |gpu| gpu.used),
        throttled_ns: figures.map_or(0, |gpu| gpu.waited),
        turn_changes: container.limits.turn(uuid).map_or(0, |turn| u64::from(turn.word.load(Relaxed) >> 2)),
        utilization: None,
        throttled: None,
        last_kernel: None,
        processes: members,
        uuid: text,
    }
}

/// Fills in what takes two looks, and gives what the next look needs.
fn rates(
    share: &mut Share,
    before: Option<&Previous>,
    (now, time): (Instant, f64),
    container: &Container,
    uuid: Uuid,
    gpu: Option<&ObservedGpu>,
    place: usize,
) -> Previous {
    let account = container.account.iter().flat_map(|account| &account.gpus).find(|gpu| gpu.uuid == uuid);
    let activity = account.map_or(0, |gpu| gpu.activity).wrapping_add(share.used_ns);
    let last_kernel = match before {
        Some(before) if before.activity.0 == activity => before.activity.1,
        Some(_) => Some(time),
        None => None,
    };
    share.last_kernel = last_kernel;
    let nvml = || {
        let told = gpu?.of_container(place).map(|(holder, ..)| holder.utilization);
        told.sum::<Option<u32>>().map(|percent| f64::from(percent.min(100)))
    };
    let kept = before.filter(|before| now.duration_since(before.at) < MIN_RATE_INTERVAL);
    if let Some(before) = kept {
        (share.utilization, share.throttled) = before.rates;
        return Previous { activity: (activity, last_kernel), ..*before };
    }
    let rate = |was: u64, is: u64| {
        let passed = now.duration_since(before?.at).as_nanos() as f64;
        Some(is.saturating_sub(was) as f64 * 100.0 / passed)
    };
    let (used, waited) = before.map_or((0, 0), |before| (before.used, before.waited));
    share.utilization = if share.cores.is_some() { rate(used, share.used_ns).map(|percent| percent.min(100.0)) } else { nvml() };
    share.throttled = rate(waited, share.throttled_ns);
    Previous {
        at: now,
        used: share.used_ns,
        waited: share.throttled_ns,
        activity: (activity, last_kernel),
        rates: (share.utilization, share.throttled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::Host;
    use std::os::unix::ffi::OsStrExt;
    use vgpu_config::limits::{GpuLimits, Which};
    use vgpu_oci_hook::state::REGION;
    use vgpu_region::map;

    #[test]
    fn processes_of_another_namespace_are_not_taken_for_none() {
        let holder = |pid| Holder { pid, memory: Some(1), utilization: None };
        let state = |pids: &[u32]| State {
            index: 0,
            uuid: String::new(),
            name: String::new(),
            memory: 1,
            memory_used: 1,
            utilization: None,
            processes: Some(pids.iter().copied().map(holder).collect()),
        };
        let known = |pids: &[u32]| ObservedGpu::new(state(pids), &ProcessOwners::default()).state.processes.is_some();
        assert!(known(&[]) && known(&[u32::MAX, std::process::id()]) && !known(&[u32::MAX]));
    }

    #[test]
    fn shares_and_rates_come_from_the_account() {
        let host = Host::new();
        let (inventory, uuids) = Host::inventory(1);
        crate::inventory::write(host.path(), &inventory).unwrap();
        let limit = GpuLimits { memory_percent: Some(25), cores: Some(40), ..GpuLimits::none(Which::All) };
        host.container("c", "app", "web", &[limit]);
        let path = std::ffi::CString::new(host.place("c").join(REGION).as_os_str().as_bytes()).unwrap();
        let mut observer = Observer::new(host.path());
        observer.inventory = inventory;
        let first = observer.sample().containers.remove(0).gpus.remove(0);
        assert_eq!((first.memory_limit, first.cores, first.charged), (Some(20 << 30), Some(40), 0), "there before any process is");
        let member = map::join(&path, 4, 5).unwrap();
        let place = member.region.gpu(uuids[0]).unwrap();
        let account = &member.region.gpus[place];
        member.slot().gpus[place].charge.reserve(&account.total, 7, 100).unwrap();
        std::thread::sleep(MIN_RATE_INTERVAL * 2);
        observer.sample();
        account.budget.used.fetch_add(1 << 60, Relaxed);
        account.budget.waited.fetch_add(10_000_000, Relaxed);
        std::thread::sleep(MIN_RATE_INTERVAL * 2);
        let share = observer.sample().containers.remove(0).gpus.remove(0);
        assert_eq!((share.charged, share.utilization), (7 * 4096, Some(100.0)), "never more than all of it, whatever the account says");
        assert!(share.throttled.is_some_and(|percent| percent > 0.0) && share.last_kernel.is_some());
        assert_eq!(share.processes.iter().map(|member| (member.inner, member.charged)).collect::<Vec<_>>(), [(4, Some(7 * 4096))]);
        let soon = observer.sample().containers.remove(0).gpus.remove(0);
        assert_eq!((soon.utilization, soon.throttled), (share.utilization, share.throttled), "too soon for another rate");
        // SAFETY: nothing of the region is used after this.
        unsafe { map::unmap(member.region) };
    }
}
