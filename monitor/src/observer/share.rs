//! One container's share of one GPU, from its account and from NVML.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use vgpu_config::devices;
use vgpu_region::uuid::Uuid;

use crate::account::{self, Account, Charge};
use crate::container::Container;
use crate::gpus::{Holder, State};
use crate::ownership::ProcessOwners;
use crate::processes::{Process, ProcessTable};
use crate::snapshot::{GpuProcess, Share};

/// Shortest time over which rates are computed.
pub(super) const MIN_RATE_INTERVAL: Duration = Duration::from_millis(100);

/// Process on a GPU.
type Listed = (Holder, Arc<Process>);

/// GPU and its processes by the index of the container that they belong to.
pub(super) struct ObservedGpu {
    pub state: State,
    pub uuid: Option<Uuid>,
    by_container: HashMap<usize, Vec<Listed>>,
}

impl ObservedGpu {
    pub fn new(mut state: State, owners: &ProcessOwners, table: &mut ProcessTable) -> Self {
        let (mut by_container, mut identified) = (HashMap::<usize, Vec<Listed>>::new(), false);
        for holder in state.processes.iter().flatten() {
            let Some(process) = table.get(holder.pid) else { continue };
            identified = true;
            if let Some(index) = owners.container_of(&process) {
                by_container.entry(index).or_default().push((*holder, process));
            }
        }
        // NVML's PIDs are the host's. If none of them exists here, this process is in another PID namespace and cannot identify any.
        if !identified && state.processes.as_ref().is_some_and(|listed| !listed.is_empty()) {
            state.processes = None;
        }
        Self { uuid: devices::uuid(&state.uuid), state, by_container }
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
        Share {
            uuid: self.gpu.map_or_else(|| self.uuid.to_string(), |gpu| gpu.state.uuid.clone()),
            memory_limit: limit.and_then(|limit| limit.memory_for(total_memory)),
            cores: limit.and_then(|limit| limit.cores_limit()),
            cores_soft: limit.map(|limit| limit.cores_soft.load(Relaxed)).filter(|percent| *percent != 0),
            charged: figures.map_or(0, |gpu| gpu.charged),
            overhead: sum(|charge| charge.overhead),
            managed: sum(|charge| charge.managed),
            spilled: figures.map_or(0, |gpu| gpu.spilled),
            held: self.held(),
            refused: figures.map_or(0, |gpu| gpu.refused),
            first_refusal: figures.map(|gpu| gpu.first_refusal).filter(|&at| at != 0).map(|at| at as f64 / 1e9),
            used_ns: figures.map_or(0, |gpu| gpu.used),
            throttled_ns: figures.map_or(0, |gpu| gpu.waited),
            turn_changes: self.container.limits.turn(self.uuid).map_or(0, |turn| u64::from(turn.word.load(Relaxed) >> 2)),
            utilization: None,
            throttled: None,
            last_kernel: None,
            processes: self.processes(account, entry),
        }
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
                is_listed: true,
                is_transient: process.has_exited || own.is_some_and(|own| own.making_context),
            }
        });
        let listed_pids: HashSet<u32> = self.listed().iter().map(|(_, process)| process.inner_pid).collect();
        let is_unlisted = |own: &&account::Process| charge(own, entry).total != 0 && !listed_pids.contains(&own.pid);
        let unlisted = account.processes.iter().filter(is_unlisted).map(|own| {
            let Charge { total, overhead, .. } = charge(own, entry);
            GpuProcess { inner_pid: own.pid, charged: Some(total), overhead, is_transient: own.making_context, ..GpuProcess::default() }
        });
        listed.chain(unlisted).collect()
    }

    /// Fills in the rates since `previous`, and returns what the next sample needs. Keeps the previous rates for 100 ms.
    pub fn rates(&self, share: &mut Share, previous: Option<&Previous>) -> Previous {
        let account = self.container.account.iter().flat_map(|account| &account.gpus).find(|gpu| gpu.uuid == self.uuid);
        let activity = account.map_or(0, |gpu| gpu.activity).wrapping_add(share.used_ns);
        share.last_kernel = match previous {
            Some(previous) if previous.activity == activity => previous.last_kernel,
            Some(_) => Some(self.unix_time),
            None => None,
        };
        if let Some(previous) = previous.filter(|previous| self.now.duration_since(previous.at) < MIN_RATE_INTERVAL) {
            (share.utilization, share.throttled) = (previous.utilization, previous.throttled);
            return Previous { activity, last_kernel: share.last_kernel, ..*previous };
        }
        let rate = |before: fn(&Previous) -> u64, now_ns: u64| {
            let passed_ns = self.now.duration_since(previous?.at).as_nanos() as f64;
            Some(now_ns.saturating_sub(before(previous?)) as f64 * 100.0 / passed_ns)
        };
        let charged = || rate(|previous| previous.used_ns, share.used_ns).map(|percent| percent.min(100.0));
        share.utilization = if share.cores.is_some() { charged() } else { self.reported_utilization() };
        share.throttled = rate(|previous| previous.throttled_ns, share.throttled_ns);
        Previous {
            at: self.now,
            used_ns: share.used_ns,
            throttled_ns: share.throttled_ns,
            activity,
            last_kernel: share.last_kernel,
            utilization: share.utilization,
            throttled: share.throttled,
        }
    }

    /// Returns the sum of the processes' utilization that NVML reports, in percent.
    fn reported_utilization(&self) -> Option<f64> {
        let by_process = self.gpu?.of_container(self.index).iter().map(|(holder, _)| holder.utilization);
        by_process.sum::<Option<u32>>().map(|percent| f64::from(percent.min(100)))
    }
}

/// Returns what a process has charged on the GPU at index `entry` of its account.
fn charge(process: &account::Process, entry: Option<usize>) -> Charge {
    entry.and_then(|at| process.charges.get(at)).copied().unwrap_or_default()
}
