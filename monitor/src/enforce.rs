//! Who holds more than it may, or uses a GPU past the library: judged from what NVML and the kernel say.
//!
//! Whoever does not bypass anything must never be touched, so what is seen has to last:
//! * Figures of one moment do not fit together while contexts are made and processes end. A finding counts only from the third look
//!   in a row, and processes are ended only after the operator's grace time.
//! * A container whose limit was lowered below what it held keeps that by right. What it may have is then what it held, and less as it
//!   gives back.
//! * Where NVML could not tell who is on a GPU, nothing is concluded, neither good nor bad.

use std::collections::HashMap;
use std::time::Duration;

use crate::processes::Process;
use crate::snapshot::{ContainerState, GpuProcess, Share, Snapshot};

/// Looks in a row before a finding counts.
const MIN_SAMPLES: u32 = 3;
/// Longest time for which figures may be about to change because a process says that it is making a context.
const MAX_TRANSIENT: Duration = Duration::from_secs(5);
/// What the driver may take for itself before anybody is to blame, in bytes: for a container, and for each of its processes.
const SLACK: (u64, u64) = (32 << 20, 4 << 20);

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The container's processes hold more memory than they may.
    Over,
    /// A process uses the GPU without the account knowing it.
    Bypass,
}

impl Kind {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Over, Self::Bypass];

    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Over => "over_limit",
            Self::Bypass => "bypass",
        }
    }
}

/// A violation that lasts.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The container's id.
    pub id: String,
    /// The name of its folder in the state directory.
    pub place: String,
    /// Its name.
    pub name: String,
    /// Which GPU.
    pub uuid: String,
    /// What is wrong.
    pub kind: Kind,
    /// What the container's processes hold there, in bytes.
    pub held: u64,
    /// What they may, in bytes; `None` without a limit on memory.
    pub allowed: Option<u64>,
    /// Those to blame, the first ones first.
    pub offenders: Vec<Offender>,
    /// Whether it is found for the first time.
    pub new: bool,
    /// Whether the grace time is over.
    pub due: bool,
}

/// A process to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offender {
    /// Its PID on the host.
    pub pid: u32,
    /// When it started: with the PID, its identity.
    pub started: u64,
    /// The name of its program.
    pub name: String,
    /// What it holds, in bytes, where NVML tells.
    pub held: Option<u64>,
}

/// A finding over several looks.
#[derive(Clone, Copy, Debug)]
struct Seen {
    since: Duration,
    looks: u32,
    told: bool,
    last: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Allowed {
    limit: u64,
    allowed: u64,
}

type Key = (String, u64, String);

/// Judges one snapshot after the other.
#[derive(Debug)]
pub struct ViolationDetector {
    grace: Duration,
    allowed: HashMap<Key, Allowed>,
    seen: HashMap<(Key, Option<(u32, u64)>), Seen>,
}

impl ViolationDetector {
    /// Violations are due when they have lasted for `grace`.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self { grace, allowed: HashMap::new(), seen: HashMap::new() }
    }

    /// Judges what is seen at `now`, a time that only goes forward. Gives every violation that lasts.
    pub fn judge(&mut self, snapshot: &Snapshot, now: Duration) -> Vec<Violation> {
        let mut found = Vec::new();
        for container in &snapshot.containers {
            for share in &container.gpus {
                let key = (container.place.clone(), container.created, share.uuid.clone());
                match share.held {
                    Some(held) => {
                        found.extend(self.over(container, share, held, &key, now));
                        found.extend(self.bypass(container, share, held, &key, now));
                    }
                    // NVML could not tell: what was seen before still stands, and no more than that.
                    None => self.seen.iter_mut().filter(|((of, _), _)| *of == key).for_each(|(_, seen)| seen.last = now),
                }
            }
        }
        self.seen.retain(|_, seen| seen.last == now);
        let exists = |key: &Key| snapshot.containers.iter().any(|container| (&container.place, container.created) == (&key.0, key.1));
        self.allowed.retain(|key, _| exists(key));
        found
    }

    /// Counts one more look. Gives the finding if it counts by now, and whether it is new and due.
    fn look(&mut self, key: (Key, Option<(u32, u64)>), now: Duration, in_between: bool) -> Option<(bool, bool)> {
        let seen = self.seen.entry(key).or_insert(Seen { since: now, looks: 0, told: false, last: now });
        seen.last = now;
        if !in_between || now.saturating_sub(seen.since) > MAX_TRANSIENT {
            seen.looks += 1;
        }
        if seen.looks < MIN_SAMPLES && !seen.told {
            return None;
        }
        let due = seen.looks >= MIN_SAMPLES && now.saturating_sub(seen.since) >= self.grace;
        if due {
            // Whoever is ended takes a moment to go; the next one is due after as many looks again.
            seen.looks = 0;
        }
        Some((!std::mem::replace(&mut seen.told, true), due))
    }

    /// What a container may hold: its limit, or what it held when that was lowered.
    fn allow(&mut self, container: &ContainerState, limit: u64, held: u64, key: &Key) -> u64 {
        let by_right = || {
            // Its limit was changed before we first saw it; what its account knows of may be from before that.
            let known = |member: &&GpuProcess| member.charged.is_some();
            let known_held = || container.gpus.iter().filter(|share| share.uuid == key.2).flat_map(|share| &share.processes);
            let held: u64 = known_held().filter(known).filter_map(|member| Some(member.held?.min(member.charged?))).sum();
            if container.changes == 0 { limit } else { limit.max(held) }
        };
        let allowed = self.allowed.entry(key.clone()).or_insert_with(|| Allowed { limit, allowed: by_right() });
        if allowed.limit != limit {
            *allowed = Allowed { limit, allowed: limit.max(allowed.allowed) };
        }
        allowed.allowed = limit.max(allowed.allowed.min(held));
        allowed.allowed
    }

    fn over(&mut self, container: &ContainerState, share: &Share, held: u64, key: &Key, now: Duration) -> Option<Violation> {
        let allowed = self.allow(container, share.memory_limit?, held, key);
        let listed = share.processes.iter().filter(|member| member.listed).count() as u64;
        let slack = SLACK.0.max(allowed / 100) + SLACK.1 * listed;
        if held <= allowed.saturating_add(slack) {
            return None;
        }
        let in_between = share.processes.iter().any(|member| member.in_between);
        let (new, due) = self.look((key.clone(), None), now, in_between)?;
        let offenders = offenders(share, held, allowed);
        Some(violation(container, share, Kind::Over, held, Some(allowed), offenders, (new, due)))
    }

    fn bypass(&mut self, container: &ContainerState, share: &Share, held: u64, key: &Key, now: Duration) -> Vec<Violation> {
        // Without an account nobody can tell who is in it; a share without limits has nothing to be bypassed.
        if container.damaged.is_some() || (share.memory_limit.is_none() && share.cores.is_none()) {
            return Vec::new();
        }
        let mut found = Vec::new();
        let unknown = |member: &&GpuProcess| member.listed && member.charged.is_none() && !member.in_between && member.held != Some(0);
        for member in share.processes.iter().filter(unknown) {
            let Some(offender) = offender(member) else { continue };
            let identity = Some((offender.pid, offender.started));
            if let Some(state) = self.look((key.clone(), identity), now, false) {
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
    (new, due): (bool, bool),
) -> Violation {
    Violation {
        id: container.id.clone(),
        place: container.place.clone(),
        name: container.name(),
        uuid: share.uuid.clone(),
        kind,
        held,
        allowed,
        offenders,
        new,
        due,
    }
}

fn offender(member: &GpuProcess) -> Option<Offender> {
    Some(Offender { pid: member.pid?, started: member.started, name: member.name.clone(), held: member.held })
}

/// Those whose end brings a share back to what is allowed: first whoever the account does not know, then whoever holds more than it
/// has charged, the most first; and if all of them claim to have charged it, whoever holds most.
fn offenders(share: &Share, held: u64, allowed: u64) -> Vec<Offender> {
    let excess = |member: &GpuProcess| {
        let (held, charged) = (member.held.unwrap_or(0), member.charged.unwrap_or(0));
        Some(held.saturating_sub(charged)).filter(|excess| *excess > SLACK.1).unwrap_or(0)
    };
    let mut members: Vec<&GpuProcess> = share.processes.iter().filter(|member| member.listed && !member.in_between).collect();
    members.sort_by_key(|member| std::cmp::Reverse((member.charged.is_none(), excess(member), member.held)));
    let mut left = held;
    let mut chosen = Vec::new();
    for member in members {
        if left <= allowed {
            break;
        }
        left = left.saturating_sub(member.held.unwrap_or(0));
        chosen.extend(offender(member));
    }
    chosen
}

/// Ends a process, if it still is the one that was meant, and where it was. Whether it was ended.
///
/// # Errors
/// The kernel does not let us.
pub fn kill(offender: &Offender, belongs: impl Fn(&Process) -> bool) -> std::io::Result<bool> {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let Some(pid) = i32::try_from(offender.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    // The descriptor stands for one process for good; only then is it asked which one it is.
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        other => other?,
    };
    let is_meant = |found: Process| found.started == offender.started && !found.ended && belongs(&found);
    if !Process::read(offender.pid).is_some_and(is_meant) {
        return Ok(false);
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

#[cfg(test)]
mod tests;
