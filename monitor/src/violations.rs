//! Detection of containers that hold more memory than their limit, use more GPU time, or use a GPU without the library, from what NVML and
//! the kernel report.
//!
//! A well-behaved container must never be reported, so a finding has to persist:
//! * The figures of one sample are inconsistent while contexts are made and processes exit. A finding counts from the third consecutive
//!   sample on, and processes are due to be ended only after the operator's grace time.
//! * A container whose limit was lowered below what it held may keep that. Its allowance is what it held, and shrinks as it frees memory.
//! * Samples in which NVML could not list the processes neither confirm nor clear a finding.
//!
//! What a container's account says can only speak against it, or excuse it for a time that is bounded by the host's own clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::snapshot::{ContainerState, GpuProcess, Share, Snapshot};
use excuses::{Excuses, MAX_TRANSIENT};
use gpu_time::TimeChecks;
use types::{Identity, Key, offender};

mod excuses;
mod gpu_time;
mod types;

pub use types::{Kind, Offender, Violation};

/// Consecutive samples before a finding counts.
const MIN_SAMPLES: u32 = 3;
/// Time after a violation that was due in which the next one of the same container is due at once. A program that starts anew whenever it is
/// ended would use the grace time each time.
const REPEAT: Duration = Duration::from_secs(300);
/// Memory that the driver may take beyond the limit: the least for each container, in bytes.
const CONTAINER_SLACK: u64 = 32 << 20;
/// Memory that the driver may take beyond the limit for each process, in bytes.
const PROCESS_SLACK: u64 = 4 << 20;
/// Memory that a process may hold beyond its charges, in bytes: what the library does not measure far from the limit, such as page tables and
/// streams. A context takes more (518 MiB on an H200).
const UNCHARGED_SLACK: u64 = 128 << 20;

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

/// Subject of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// The container's memory.
    Memory,
    /// The container's GPU time.
    Time,
    /// One process.
    Process(Identity),
}

/// Detector of violations in a sequence of snapshots.
#[derive(Debug)]
pub struct ViolationDetector {
    grace: Duration,
    allowances: HashMap<Key, Allowance>,
    findings: HashMap<(Key, Subject), Finding>,
    /// When a share's violation was due last.
    due: HashMap<Key, Duration>,
    excuses: Excuses,
    time: TimeChecks,
}

impl ViolationDetector {
    /// Returns a detector whose violations are due once they have lasted for `grace`.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            allowances: HashMap::new(),
            findings: HashMap::new(),
            due: HashMap::new(),
            excuses: Excuses::default(),
            time: TimeChecks::default(),
        }
    }

    /// Returns the violations that persist at `now`, a monotonic time.
    pub fn detect(&mut self, snapshot: &Snapshot, now: Duration) -> Vec<Violation> {
        let (mut violations, mut unknown) = (Vec::new(), HashSet::new());
        self.excuses.update(snapshot, now);
        for container in &snapshot.containers {
            for share in &container.gpus {
                let key = (container.dir_name.clone(), container.created, share.uuid.clone());
                match share.held {
                    Some(held) => {
                        violations.extend(self.over(container, share, held, &key, now));
                        violations.extend(self.bypass(container, share, held, &key, now));
                    }
                    None => _ = unknown.insert(key.clone()),
                }
                violations.extend(self.over_time(container, share, &key, now));
            }
        }
        // NVML could not list the processes: findings neither advance nor expire.
        self.findings.iter_mut().filter(|((of, _), _)| unknown.contains(of)).for_each(|(_, finding)| finding.last = now);
        self.findings.retain(|_, finding| finding.last == now);
        let existing: HashSet<(&str, u64)> =
            snapshot.containers.iter().map(|container| (container.dir_name.as_str(), container.created)).collect();
        let exists = |key: &Key| existing.contains(&(key.0.as_str(), key.1));
        self.allowances.retain(|key, _| exists(key));
        self.due.retain(|key, &mut at| exists(key) && now.saturating_sub(at) < REPEAT);
        self.time.retain(exists);
        violations
    }

    /// Counts one more sample of a finding. Returns whether it is new and whether it is due; `None` until it counts.
    fn count(&mut self, key: (Key, Subject), now: Duration, is_transient: bool) -> Option<(bool, bool)> {
        let grace = if self.due.contains_key(&key.0) { Duration::ZERO } else { self.grace };
        let of = key.0.clone();
        let finding = self.findings.entry(key).or_insert(Finding { since: now, samples: 0, is_reported: false, last: now });
        finding.last = now;
        if !is_transient || now.saturating_sub(finding.since) > MAX_TRANSIENT {
            finding.samples += 1;
        }
        if finding.samples < MIN_SAMPLES && !finding.is_reported {
            return None;
        }
        let is_due = finding.samples >= MIN_SAMPLES && now.saturating_sub(finding.since) >= grace;
        if is_due {
            self.due.insert(of, now);
            // A killed process takes a moment to exit; the next one is due after as many samples again.
            finding.samples = 0;
        }
        Some((!std::mem::replace(&mut finding.is_reported, true), is_due))
    }

    /// Returns what a container may hold, in bytes: its limit, or what it held when the limit was lowered.
    fn allow(&mut self, share: &Share, limit: u64, held: u64, key: &Key) -> u64 {
        let initial = || limit.max(share.by_right.unwrap_or(0));
        let allowance = self.allowances.entry(key.clone()).or_insert_with(|| Allowance { limit, allowed: initial() });
        if allowance.limit != limit {
            *allowance = Allowance { limit, allowed: limit.max(allowance.allowed) };
        }
        allowance.allowed = limit.max(allowance.allowed.min(held));
        allowance.allowed
    }

    fn over(&mut self, container: &ContainerState, share: &Share, held: u64, key: &Key, now: Duration) -> Option<Violation> {
        let allowed = self.allow(share, share.memory_limit?, held, key);
        let listed = share.processes.iter().filter(|process| process.is_listed).count() as u64;
        let slack = CONTAINER_SLACK.max(allowed / 100) + PROCESS_SLACK * listed;
        if held <= allowed.saturating_add(slack) {
            return None;
        }
        let is_transient = share.processes.iter().any(|process| process.has_exited || self.excuses.excuse(process));
        let state = self.count((key.clone(), Subject::Memory), now, is_transient)?;
        Some(violation(container, share, Kind::Over, offenders(share, held, allowed, &self.excuses), state).allowing(Some(allowed)))
    }

    fn bypass(&mut self, container: &ContainerState, share: &Share, held: u64, key: &Key, now: Duration) -> Vec<Violation> {
        // If the host could not read the account, nothing is known. A share without limits has nothing to bypass.
        let is_unknown = container.damaged.is_some() && !container.is_tampered;
        if is_unknown || (share.memory_limit.is_none() && share.cores.is_none()) {
            return Vec::new();
        }
        let is_short = is_far_above(held, share.booked.max(share.charged));
        let mut found = Vec::new();
        for process in share.processes.iter().filter(|process| process.is_listed && !process.has_exited && process.held != Some(0)) {
            // Memory of another process of the container, imported and charged there, is no bypass.
            let is_excessive = |charged: u64| is_short && is_far_above(process.held.unwrap_or(0), charged) && !self.excuses.excuse(process);
            if !process.charged.is_none_or(is_excessive) {
                continue;
            }
            let Some(offender) = offender(process) else { continue };
            let subject = Subject::Process((offender.pid, offender.start_time));
            if let Some(state) = self.count((key.clone(), subject), now, false) {
                found.push(violation(container, share, Kind::Bypass, vec![offender], state));
            }
        }
        found
    }

    fn over_time(&mut self, container: &ContainerState, share: &Share, key: &Key, now: Duration) -> Option<Violation> {
        // MPS limits the number of multiprocessors, not the time.
        if container.is_mps || !self.time.is_over(share, key, now) {
            return None;
        }
        let state = self.count((key.clone(), Subject::Time), now, false)?;
        let offenders = self.time.offenders(share, key);
        Some(violation(container, share, Kind::OverTime, offenders, state))
    }
}

/// Returns whether a process or a container holds far more than it has charged. Both in bytes.
fn is_far_above(held: u64, charged: u64) -> bool {
    held > charged.saturating_add(UNCHARGED_SLACK.max(held / 8))
}

fn violation(container: &ContainerState, share: &Share, kind: Kind, offenders: Vec<Offender>, (is_new, is_due): (bool, bool)) -> Violation {
    Violation {
        id: container.id.clone(),
        dir_name: container.dir_name.clone(),
        name: container.name(),
        uuid: share.uuid.clone(),
        kind,
        held: share.held.unwrap_or(0),
        allowed: share.memory_limit,
        time: share.cores.map(|percent| (share.observed.unwrap_or(0.0), percent)),
        offenders,
        is_new,
        is_due,
    }
}

/// Returns the processes whose end brings a share back to `allowed`. Processes without an account come first, then those that hold more
/// than they have charged, by the excess, then the largest ones. Processes that are excused are
/// chosen only if there are no others.
fn offenders(share: &Share, held: u64, allowed: u64, excuses: &Excuses) -> Vec<Offender> {
    let excess = |process: &GpuProcess| {
        let (held, charged) = (process.held.unwrap_or(0), process.charged.unwrap_or(0));
        Some(held.saturating_sub(charged)).filter(|excess| *excess > PROCESS_SLACK).unwrap_or(0)
    };
    let mut processes: Vec<&GpuProcess> = share.processes.iter().filter(|process| process.is_listed && !process.has_exited).collect();
    let has_others = processes.iter().any(|process| !excuses.excuse(process));
    processes.retain(|process| !has_others || !excuses.excuse(process));
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
