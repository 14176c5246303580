//! GPU time beyond the limit, by what NVML says.
//!
//! The library charges GPU time in memory that the container can write, so the charges prove nothing. NVML counts the time in which a process
//! has a kernel on the GPU, a few times a second. Time beyond the limit adds up, and time below it is subtracted: a kernel that runs for
//! seconds is paid for afterwards. The end of a process pays nothing: another one in its place goes on where it stopped. Only processes that
//! use more than the container may are ever ended.

use std::collections::HashMap;
use std::time::Duration;

use super::types::{Key, Offender, offender};
use crate::snapshot::{GpuProcess, Share};

/// Time beyond the limit that is allowed as a part of the limit.
const SLACK_FACTOR: f64 = 1.2;
/// Time beyond the limit that is allowed in any case, in points: pauses of the GPU between launches count for NVML.
const SLACK_POINTS: f64 = 10.0;
/// GPU time beyond the limit and the slack from which on it is a violation, in nanoseconds: a kernel of ten seconds is none.
const MAX_EXCESS_NS: f64 = 10e9;
/// Time for which a limit counts that was lent, or that was lowered since.
const LIMIT_MEMORY: Duration = Duration::from_secs(30);

/// GPU time of one share.
#[derive(Clone, Debug, Default)]
struct TimeCheck {
    observed_ns: u64,
    over_ns: u64,
    /// Time beyond the limit, in nanoseconds of GPU time.
    excess_ns: f64,
    /// Highest limit of late in percent, and when it applied last.
    limit: u32,
    limit_at: Duration,
}

impl TimeCheck {
    /// Adds what was observed since the last sample.
    fn add(&mut self, share: &Share, observed_ns: u64, limit: u32, now: Duration) {
        if limit >= self.limit || now.saturating_sub(self.limit_at) > LIMIT_MEMORY {
            (self.limit, self.limit_at) = (limit, now);
        }
        let used = observed_ns.saturating_sub(self.observed_ns) as f64;
        let over = share.observed_over_ns.saturating_sub(self.over_ns) as f64;
        let allowed = over * self.allowed() / 100.0;
        self.excess_ns = (self.excess_ns + used - allowed).clamp(0.0, 2.0 * MAX_EXCESS_NS);
        (self.observed_ns, self.over_ns) = (observed_ns, share.observed_over_ns);
    }

    /// Returns the GPU time that is allowed, in percent.
    fn allowed(&self) -> f64 {
        f64::from(self.limit) * SLACK_FACTOR + SLACK_POINTS
    }
}

/// GPU time of all shares.
#[derive(Debug, Default)]
pub(super) struct TimeChecks(HashMap<Key, TimeCheck>);

impl TimeChecks {
    /// Forgets the shares of containers that are gone.
    pub(super) fn retain(&mut self, exists: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| exists(key));
    }

    /// Returns whether a share has used too much GPU time.
    pub(super) fn is_over(&mut self, share: &Share, key: &Key, now: Duration) -> bool {
        let (Some(cores), Some(observed_ns)) = (share.cores, share.observed_ns) else {
            self.0.remove(key);
            return false;
        };
        // What was observed before the first sample is of unknown time.
        let first = || TimeCheck { observed_ns, over_ns: share.observed_over_ns, ..TimeCheck::default() };
        let check = self.0.entry(key.clone()).or_insert_with(first);
        check.add(share, observed_ns, cores.max(share.lent), now);
        check.excess_ns >= MAX_EXCESS_NS
    }

    /// Returns the processes whose end brings a share back to its limit: those that used most of the GPU's time lately.
    pub(super) fn offenders(&self, share: &Share, key: &Key) -> Vec<Offender> {
        let Some(check) = self.0.get(key) else { return Vec::new() };
        let mut processes: Vec<&GpuProcess> =
            share.processes.iter().filter(|process| process.observed.is_some_and(|used| used > 0)).collect();
        processes.sort_by_key(|process| std::cmp::Reverse(process.observed));
        let mut left = processes.iter().filter_map(|process| process.observed).sum::<u32>();
        let mut chosen = Vec::new();
        for process in processes {
            if f64::from(left) <= check.allowed() {
                break;
            }
            left -= process.observed.unwrap_or(0);
            chosen.extend(offender(process));
        }
        chosen
    }
}
