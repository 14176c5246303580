//! One container's share of one GPU, from its account and from NVML.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use vgpu_config::devices;
use vgpu_region::limits::Turn;
use vgpu_region::uuid::Uuid;

use crate::account::{self, Account, Charge};
use crate::container::Container;
use crate::gpus::{Holder, State};
use crate::ownership::ProcessOwners;
use crate::process_table::ProcessTable;
use crate::processes::Process;
use crate::snapshot::{GpuProcess, Share, Unlimited};

/// Shortest time over which rates are computed.
pub(super) const MIN_RATE_INTERVAL: Duration = Duration::from_millis(100);

/// Processes of a share that only its account has and that are in a sample. The account is the container's to write, and samples are read
/// by all parts.
const MAX_UNLISTED: usize = 64;

/// Process on a GPU.
type Listed = (Holder, Arc<Process>);

/// GPU and its processes by the index of the container that they belong to.
pub(super) struct ObservedGpu {
    pub state: State,
    pub uuid: Option<Uuid>,
    by_container: HashMap<usize, Vec<Listed>>,
    /// Processes of no container with limits.
    pub unlimited: Vec<Unlimited>,
    /// Percent of the GPU's time by container, with processes that have exited since.
    percent: HashMap<usize, u32>,
}

impl ObservedGpu {
    pub fn new(mut state: State, owners: &ProcessOwners, table: &mut ProcessTable) -> Self {
        let (mut by_container, mut identified, mut unlimited) = (HashMap::<usize, Vec<Listed>>::new(), false, Vec::new());
        let percent_of = |pid| state.usage.as_ref().map(|usage| usage.percent.get(&pid).copied().unwrap_or(0));
        for holder in state.processes.iter().flatten() {
            let Some(process) = table.get(holder.pid) else { continue };
            identified = true;
            match owners.container_of(&process) {
                Some(index) => by_container.entry(index).or_default().push((*holder, process)),
                None if process.has_exited => {}
                None => {
                    let (pid, name) = (process.pid, process.name.clone());
                    unlimited.push(Unlimited { pid, name, held: holder.memory, observed: percent_of(pid) });
                }
            }
        }
        // NVML's PIDs are the host's. If none of them exists here, this process is in another PID namespace and cannot identify any.
        if !identified && state.processes.as_ref().is_some_and(|listed| !listed.is_empty()) {
            state.processes = None;
        }
        let mut percent = HashMap::<usize, u32>::new();
        for (pid, used) in state.usage.iter().flat_map(|usage| &usage.percent) {
            // NVML may report the time of a process that it does not list.
            let process = table.known(*pid).or_else(|| table.get(*pid));
            if let Some(index) = process.and_then(|process| owners.container_of(&process)) {
                *percent.entry(index).or_default() += used;
            }
        }
        Self { uuid: devices::uuid(&state.uuid), state, by_container, unlimited, percent }
    }

    /// Returns whether NVML lists processes of the container at `index`.
    pub fn has_processes_of(&self, index: usize) -> bool {
        self.by_container.contains_key(&index)
    }

    fn of_container(&self, index: usize) -> &[Listed] {
        self.by_container.get(&index).map_or(&[], Vec::as_slice)
    }
}

/// Figures of a share at the last computation of its rates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Previous {
    at: Instant,
    used_ns: u64,
    throttled_ns: u64,
    activity: u64,
    last_kernel: Option<f64>,
    utilization: Option<f64>,
    throttled: Option<f64>,
    observed_ns: u64,
    observed_over_ns: u64,
}

/// Inputs for one share in one sample.
pub(super) struct Sampling<'a> {
    pub container: &'a Container,
    /// Index of the container in the sample.
    pub index: usize,
    pub uuid: Uuid,
    /// Index of the GPU in the container.
    pub nth: usize,
    /// `None` if NVML does not report the GPU.
    pub gpu: Option<&'a ObservedGpu>,
    pub now: Instant,
    /// `now` in seconds since 1970.
    pub unix_time: f64,
}

impl Sampling<'_> {
    /// Returns the share without its rates. `total_memory` is the GPU's, in bytes.
    pub fn share(&self, total_memory: u64) -> Share {
        let limit = self.container.limit(self.uuid, self.nth);
        let empty = Account::default();
        let account = self.container.account.as_ref().unwrap_or(&empty);
        let entry = account.gpus.iter().position(|gpu| gpu.uuid == self.uuid);
        let figures = entry.and_then(|at| account.gpus.get(at)).copied();
        let sum = |part: fn(Charge) -> u64| account.processes.iter().map(|own| part(charge(own, entry))).fold(0, u64::saturating_add);
        let name = self.gpu.map_or_else(|| self.uuid.to_string(), |gpu| gpu.state.uuid.clone());
        Share {
            memory_limit: limit.and_then(|limit| limit.memory_for(total_memory)),
            cores: limit.and_then(|limit| limit.cores_limit()),
            cores_soft: limit.map(|limit| limit.cores_soft.load(Relaxed)).filter(|percent| *percent != 0),
            lent: self.turn().map_or(0, |turn| turn.lent.load(Relaxed).min(100)),
            by_right: self.container.rights.as_ref().and_then(|rights| rights.memory.get(&name).copied()),
            charged: sum(|charge| charge.total),
            booked: figures.map_or(0, |gpu| gpu.charged),
            overhead: sum(|charge| charge.overhead),
            managed: sum(|charge| charge.managed),
            spilled: figures.map_or(0, |gpu| gpu.spilled),
            moved_out: figures.map_or(0, |gpu| gpu.moved_out),
            moves_out: figures.map(|gpu| gpu.moves_out).unwrap_or_default(),
            moves_in: figures.map(|gpu| gpu.moves_in).unwrap_or_default(),
            held: self.held(),
            refused: figures.map_or(0, |gpu| gpu.refused),
            first_refusal: figures.map(|gpu| gpu.first_refusal).filter(|&at| at != 0).map(|at| at as f64 / 1e9),
            used_ns: figures.map_or(0, |gpu| gpu.used),
            throttled_ns: figures.map_or(0, |gpu| gpu.waited),
            turn_changes: self.turn().map_or(0, |turn| u64::from(turn.word.load(Relaxed) >> 2)),
            processes: self.processes(account, entry),
            uuid: name,
            ..Share::default()
        }
    }

    fn turn(&self) -> Option<&Turn> {
        self.container.limits.turn(self.uuid)
    }

    /// Returns the container's processes that NVML lists.
    fn listed(&self) -> &[Listed] {
        self.gpu.map_or(&[], |gpu| gpu.of_container(self.index))
    }

    fn held(&self) -> Option<u64> {
        let is_known = self.gpu.is_some_and(|gpu| gpu.state.processes.is_some());
        is_known.then(|| self.listed().iter().filter_map(|(holder, _)| holder.memory).sum())
    }

    /// Returns the processes that NVML lists, then those that only the account has. `entry` is the GPU's index in the account.
    fn processes(&self, account: &Account, entry: Option<usize>) -> Vec<GpuProcess> {
        let usage = self.gpu.and_then(|gpu| gpu.state.usage.as_ref());
        // The first slot of a PID counts.
        let by_pid: HashMap<u32, &account::Process> = account.processes.iter().rev().map(|own| (own.pid, own)).collect();
        let listed = self.listed().iter().map(|(holder, process)| {
            let own = by_pid.get(&process.inner_pid).copied();
            GpuProcess {
                pid: Some(process.pid),
                inner_pid: process.inner_pid,
                start_time: process.start_time,
                name: process.name.clone(),
                charged: own.map(|own| charge(own, entry).total),
                overhead: own.map_or(0, |own| charge(own, entry).overhead),
                held: holder.memory,
                observed: usage.map(|usage| usage.percent.get(&process.pid).copied().unwrap_or(0)),
                is_listed: true,
                is_transient: process.has_exited || own.is_some_and(|own| own.making_context),
                has_exited: process.has_exited,
            }
        });
        let listed_pids: HashSet<u32> = self.listed().iter().map(|(_, process)| process.inner_pid).collect();
        let is_unlisted = |own: &&account::Process| charge(own, entry).total != 0 && !listed_pids.contains(&own.pid);
        let unlisted = account.processes.iter().filter(is_unlisted).take(MAX_UNLISTED).map(|own| {
            let Charge { total, overhead, .. } = charge(own, entry);
            GpuProcess { inner_pid: own.pid, charged: Some(total), overhead, is_transient: own.making_context, ..GpuProcess::default() }
        });
        listed.chain(unlisted).collect()
    }

    /// Fills in the rates since `previous`, and returns what the next sample needs. Keeps the previous rates for 100 ms.
    pub fn rates(&self, share: &mut Share, previous: Option<&Previous>) -> Previous {
        self.observe(share, previous);
        let account = self.container.account.iter().flat_map(|account| &account.gpus).find(|gpu| gpu.uuid == self.uuid);
        let activity = account.map_or(0, |gpu| gpu.activity).wrapping_add(share.used_ns);
        share.last_kernel = match previous {
            Some(previous) if previous.activity == activity => previous.last_kernel,
            Some(_) => Some(self.unix_time),
            None => None,
        };
        let (observed_ns, observed_over_ns) = (share.observed_ns.unwrap_or(0), share.observed_over_ns);
        if let Some(previous) = previous.filter(|previous| self.now.duration_since(previous.at) < MIN_RATE_INTERVAL) {
            (share.utilization, share.throttled) = (previous.utilization, previous.throttled);
            return Previous { activity, last_kernel: share.last_kernel, observed_ns, observed_over_ns, ..*previous };
        }
        let rate = |before: fn(&Previous) -> u64, now_ns: u64| {
            let passed_ns = self.now.duration_since(previous?.at).as_nanos() as f64;
            Some(now_ns.saturating_sub(before(previous?)) as f64 * 100.0 / passed_ns)
        };
        let charged = || rate(|previous| previous.used_ns, share.used_ns).map(|percent| percent.min(100.0));
        share.utilization = if share.cores.is_some() { charged() } else { share.observed };
        share.throttled = rate(|previous| previous.throttled_ns, share.throttled_ns);
        Previous {
            at: self.now,
            used_ns: share.used_ns,
            throttled_ns: share.throttled_ns,
            activity,
            last_kernel: share.last_kernel,
            utilization: share.utilization,
            throttled: share.throttled,
            observed_ns,
            observed_over_ns,
        }
    }

    /// Fills in what NVML says about the container's GPU time.
    fn observe(&self, share: &mut Share, previous: Option<&Previous>) {
        let (mut used_ns, mut over_ns) = previous.map_or((0, 0), |previous| (previous.observed_ns, previous.observed_over_ns));
        if let Some((gpu, usage)) = self.gpu.and_then(|gpu| Some((gpu, gpu.state.usage.as_ref()?))) {
            let percent = gpu.percent.get(&self.index).copied().unwrap_or(0).min(100);
            let length_ns = usage.length.as_nanos() as u64;
            used_ns += length_ns / 100 * u64::from(percent);
            over_ns += length_ns;
            (share.observed, share.observed_ns) = (Some(f64::from(percent)), Some(used_ns));
        }
        share.observed_over_ns = over_ns;
    }
}

/// Returns what a process has charged on the GPU at index `entry` of its account.
fn charge(process: &account::Process, entry: Option<usize>) -> Charge {
    entry.and_then(|at| process.charges.get(at)).copied().unwrap_or_default()
}
