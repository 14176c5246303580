//! The monitor's processes: what they use over their lifetimes, and which one is killed next.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vgpu_e2e::process::{self, Usage};

/// Role of the process that starts the others.
pub const SUPERVISOR: &str = "supervisor";
/// Roles of the others.
pub const PARTS: [&str; 5] = ["enforce", "arbiter", "http", "files", "writer"];
/// Parts that always run. A writer runs only for a container that requests files.
pub const ALWAYS: [&str; 4] = ["enforce", "arbiter", "http", "files"];
/// Lifetime from which growth is judged.
pub const LONG: Duration = Duration::from_secs(600);
/// Time after its start in which a process may grow: it sees its first containers.
const WARM: Duration = Duration::from_secs(170);
/// Samples whose median is taken at the begin and at the end of a lifetime.
const SAMPLES: usize = 3;

/// One process of the monitor.
pub struct Life {
    /// Its role.
    pub role: String,
    /// What it used, and when.
    pub samples: Vec<(Instant, Usage)>,
}

/// All processes of the monitor that were seen.
#[derive(Default)]
pub struct Lives {
    running: BTreeMap<u32, Life>,
    ended: Vec<Life>,
}

/// Growth of a process in bytes and descriptors.
pub struct Growth {
    /// Its role.
    pub role: String,
    /// The time over which it is measured.
    pub over: Duration,
    /// Private memory at the begin and at the end.
    pub private: [u64; 2],
    /// Descriptors at the begin and at the end.
    pub descriptors: [u64; 2],
}

/// Returns a monitor's processes with their roles.
pub fn roles(supervisor: u32) -> Vec<(u32, String)> {
    let role = |pid| match process::name(pid).strip_prefix("vgpu-") {
        Some(part) if pid != supervisor => part.to_owned(),
        _ => SUPERVISOR.to_owned(),
    };
    process::tree(supervisor).into_iter().map(|pid| (pid, role(pid))).collect()
}

impl Lives {
    /// Notes what the processes of a monitor use. Returns it as JSON.
    pub fn note(&mut self, supervisor: u32) -> Value {
        let now = Instant::now();
        let seen: BTreeMap<u32, (String, Usage)> =
            roles(supervisor).into_iter().filter_map(|(pid, role)| Some((pid, (role, process::usage(pid)?)))).collect();
        let gone: Vec<u32> =
            self.running.iter().filter(|(pid, life)| seen.get(pid).is_none_or(|now| now.0 != life.role)).map(|(pid, _)| *pid).collect();
        self.ended.extend(gone.iter().filter_map(|pid| self.running.remove(pid)));
        let mut list = Vec::new();
        for (pid, (role, usage)) in seen {
            let life = self.running.entry(pid).or_insert_with(|| Life { role: role.clone(), samples: Vec::new() });
            life.samples.push((now, usage));
            list.push(json!({ "role": role, "pid": pid, "seen_s": (now - life.samples[0].0).as_secs(),
                "rss": usage.rss, "pss": usage.pss, "private": usage.private, "descriptors": usage.descriptors }));
        }
        Value::Array(list)
    }

    /// Returns the growth of all processes that lived long.
    pub fn growths(&self) -> Vec<Growth> {
        self.ended.iter().chain(self.running.values()).filter_map(Life::growth).collect()
    }
}

impl Life {
    fn growth(&self) -> Option<Growth> {
        let (begin, end) = (self.samples.first()?.0, self.samples.last()?.0);
        if end - begin < LONG {
            return None;
        }
        let warm: Vec<&(Instant, Usage)> = self.samples.iter().filter(|sample| sample.0 - begin >= WARM).collect();
        let (first, last) = (warm.get(..SAMPLES)?, warm.get(warm.len().checked_sub(SAMPLES)?..)?);
        let middle = |samples: &[&(Instant, Usage)], of: fn(&Usage) -> u64| {
            let mut values: Vec<u64> = samples.iter().map(|sample| of(&sample.1)).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        Some(Growth {
            role: self.role.clone(),
            over: end - first.first()?.0,
            private: [middle(first, |usage| usage.private), middle(last, |usage| usage.private)],
            descriptors: [middle(first, |usage| usage.descriptors), middle(last, |usage| usage.descriptors)],
        })
    }
}

/// Returns which process is killed in a minute: the supervisor at the begin of every `block` minutes; in the others of a block always the
/// same part, so that the supervisor and the other parts live for a whole block.
pub fn victim(minute: u64, block: u64) -> &'static str {
    if minute.is_multiple_of(block) { SUPERVISOR } else { PARTS[(minute / block) as usize % PARTS.len()] }
}
