//! Detection of containers that hold more memory than their limit, or use a GPU without the library, from what NVML and the kernel report.
//!
//! A well-behaved container must never be reported, so a finding has to persist:
//! * The figures of one sample are inconsistent while contexts are made and processes exit. A finding counts from the third consecutive
//!   sample on, and processes are due to be ended only after the operator's grace time.
//! * A container whose limit was lowered below what it held may keep that. Its allowance is what it held, and shrinks as it frees memory.
//! * Samples in which NVML could not list the processes neither confirm nor clear a finding.

use std::collections::HashMap;
use std::time::Duration;

use crate::snapshot::{ContainerState, GpuProcess, Share, Snapshot};

/// Consecutive samples before a finding counts.
const MIN_SAMPLES: u32 = 3;
/// Longest time for which a process may excuse its figures by making a context.
const MAX_TRANSIENT: Duration = Duration::from_secs(5);
/// Memory that the driver may take beyond the limit: the least for each container, in bytes.
const CONTAINER_SLACK: u64 = 32 << 20;
/// Memory that the driver may take beyond the limit for each process, in bytes.
const PROCESS_SLACK: u64 = 4 << 20;

/// Kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The container's processes hold more memory than allowed.
    Over,
    /// A process uses the GPU without an entry in the container's account.
    Bypass,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Over, Self::Bypass];

    /// Returns the kind's label in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Over => "over_limit",
            Self::Bypass => "bypass",
        }
    }
}

/// Persistent violation.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Container ID.
    pub id: String,
    /// Name of the container's directory in the state directory.
    pub dir_name: String,
    /// Display name of the container.
    pub name: String,
    /// UUID of the GPU.
    pub uuid: String,
    /// Kind of violation.
    pub kind: Kind,
    /// Memory that the container's processes hold on the GPU, in bytes.
    pub held: u64,
    /// Allowed memory in bytes. `None` without a memory limit.
    pub allowed: Option<u64>,
    /// Processes to end, in this order.
    pub offenders: Vec<Offender>,
    /// Whether this is the first report of the violation.
    pub is_new: bool,
    /// Whether the grace time is over.
    pub is_due: bool,
}

/// Process that causes a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offender {
    /// PID on the host.
    pub pid: u32,
    /// Start time in clock ticks since boot. With the PID, the process's identity.
    pub start_time: u64,
    /// Program name.
    pub name: String,
    /// Held memory in bytes. `None` if NVML does not report it.
    pub held: Option<u64>,
}

/// History of one finding.
#[derive(Clone, Copy, Debug)]
struct Finding {
    since: Duration,
    samples: u32,
    is_reported: bool,
    last: Duration,
}

/// Memory allowance under one limit, in bytes.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    limit: u64,
    allowed: u64,
}

/// Container directory, its creation time, and GPU UUID.
type Key = (String, u64, String);
/// PID and start time.
type Identity = (u32, u64);

/// Detector of violations in a sequence of snapshots.
#[derive(Debug)]
pub struct ViolationDetector {
    grace: Duration,
    allowances: HashMap<Key, Allowance>,
    findings: HashMap<(Key, Option<Identity>), Finding>,
}

impl ViolationDetector {
    /// Returns a detector whose violations are due once they have lasted for `grace`.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self { grace, allowances: HashMap::new(), findings: HashMap::new() }
    }

    /// Returns the violations that persist at `now`, a monotonic time.
    pub fn detect(&mut self, snapshot: &Snapshot, now: Duration) -> Vec<Violation> {
        let mut violations = Vec::new();
        for container in &snapshot.containers {
            for share in &container.gpus {
                let key = (container.dir_name.clone(), container.created, share.uuid.clone());
                match share.held {
                    Some(held) => {
                        violations.extend(self.over(container, share, held, &key, now));
                        violations.extend(self.bypass(container, share, held, &key, now));
                    }
                    // NVML could not list the processes: findings neither advance nor expire.
                    None => self.findings.iter_mut().filter(|((of, _), _)| *of == key).for_each(|(_, finding)| finding.last = now),
                }
            }
        }
        self.findings.retain(|_, finding| finding.last == now);
        let exists = |key: &Key| snapshot.containers.iter().any(|container| (&container.dir_name, container.created) == (&key.0, key.1));
        self.allowances.retain(|key, _| exists(key));
        violations
    }

    /// Counts one more sample of a finding. Returns whether it is new and whether it is due; `None` until it counts.
    fn count(&mut self, key: (Key, Option<Identity>), now: Duration, is_transient: bool) -> Option<(bool, bool)> {
        let finding = self.findings.entry(key).or_insert(Finding { since: now, samples: 0, is_reported: false, last: now });
        finding.last = now;
        if !is_transient || now.saturating_sub(finding.since) > MAX_TRANSIENT {
            finding.samples += 1;
        }
        if finding.samples < MIN_SAMPLES && !finding.is_reported {
            return None;
        }
        let is_due = finding.samples >= MIN_SAMPLES && now.saturating_sub(finding.since) >= self.grace;
        if is_due {
            // A killed process takes a moment to exit; the next one is due after as many samples again.
            finding.samples = 0;
        }
        Some((!std::mem::replace(&mut finding.is_reported, true), is_due))
    }

    /// Returns what a container may hold, in bytes: its limit, or what it held when the limit was lowered.
    fn allow(&mut self, container: &ContainerState, share: &Share, limit: u64, held: u64, key: &Key) -> u64 {
        let initial = || {
            // The limit was changed before the first sample. Charged memory may be older than that change.
            let charged = share.processes.iter().filter_map(|process| Some(process.held?.min(process.charged?)));
            if container.changes == 0 { limit } else { limit.max(charged.sum()) }
        };
        let allowance = self.allowances.entry(key.clone()).or_insert_with(|| Allowance { limit, allowed: initial() });
        if allowance.limit != limit {
            *allowance = Allowance { limit, allowed: limit.max(allowance.allowed) };
        }
        allowance.allowed = limit.max(allowance.allowed.min(held));
        allowance.allowed
    }

    fn over(&mut self, container: &ContainerState, share: &Share, held: u64, key: &Key, now: Duration) -> Option<Violation> {
        let allowed = self.allow(container, share, share.memory_limit?, held, key);
        let listed = share.processes.iter().filter(|process| process.is_listed).count() as u64;
        let slack = CONTAINER_SLACK.max(allowed / 100) + PROCESS_SLACK * listed;
        if held <= allowed.saturating_add(slack) {
            return None;
        }
        let is_transient = share.processes.iter().any(|process| process.is_transient);
        let state = self.count((key.clone(), None), now, is_transient)?;
        Some(violation(container, share, Kind::Over, held, Some(allowed), offenders(share, held, allowed), state))
    }

    fn bypass(&mut self, container: &ContainerState, share: &Share, held: u64, key: &Key, now: Duration) -> Vec<Violation> {
        // A damaged account lists no processes, and a share without limits has nothing to bypass.
        if container.damaged.is_some() || (share.memory_limit.is_none() && share.cores.is_none()) {
            return Vec::new();
        }
        let mut found = Vec::new();
        let is_unknown =
            |process: &&GpuProcess| process.is_listed && process.charged.is_none() && !process.is_transient && process.held != Some(0);
        for process in share.processes.iter().filter(is_unknown) {
            let Some(offender) = offender(process) else { continue };
            let identity = Some((offender.pid, offender.start_time));
            if let Some(state) = self.count((key.clone(), identity), now, false) {
                found.push(violation(container, share, Kind::Bypass, held, share.memory_limit, vec![offender], state));
            }
        }
        found
    }
}

fn violation(
    container: &ContainerState,
    share: &Share,
    kind: Kind,
    held: u64,
    allowed: Option<u64>,
    offenders: Vec<Offender>,
    (is_new, is_due): (bool, bool),
) -> Violation {
    Violation {
        id: container.id.clone(),
        dir_name: container.dir_name.clone(),
        name: container.name(),
        uuid: share.uuid.clone(),
        kind,
        held,
        allowed,
        offenders,
        is_new,
        is_due,
    }
}

fn offender(process: &GpuProcess) -> Option<Offender> {
    Some(Offender { pid: process.pid?, start_time: process.start_time, name: process.name.clone(), held: process.held })
}

/// Returns the processes whose end brings a share back to `allowed`. Processes without an account come first, then those that hold more
/// than they have charged, by the excess, then the largest ones.
fn offenders(share: &Share, held: u64, allowed: u64) -> Vec<Offender> {
    let excess = |process: &GpuProcess| {
        let (held, charged) = (process.held.unwrap_or(0), process.charged.unwrap_or(0));
        Some(held.saturating_sub(charged)).filter(|excess| *excess > PROCESS_SLACK).unwrap_or(0)
    };
    let mut processes: Vec<&GpuProcess> = share.processes.iter().filter(|process| process.is_listed && !process.is_transient).collect();
    processes.sort_by_key(|process| std::cmp::Reverse((process.charged.is_none(), excess(process), process.held)));
    let mut left = held;
    let mut chosen = Vec::new();
    for process in processes {
        if left <= allowed {
            break;
        }
        left = left.saturating_sub(process.held.unwrap_or(0));
        chosen.extend(offender(process));
    }
    chosen
}

#[cfg(test)]
mod tests;
