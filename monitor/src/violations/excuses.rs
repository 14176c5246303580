//! How long processes may say that they are making a context, whose memory is not charged yet.
//!
//! The claim is in memory that the container's processes can write, so its time is bounded by the host's clock. Making a context takes less
//! than a second. Time that was used up comes back at a tenth of the rate, for programs that make contexts again and again.

use std::collections::HashMap;
use std::time::Duration;

use super::types::Identity;
use crate::snapshot::{GpuProcess, Snapshot};

/// Longest time for which a process may excuse its figures by making a context.
pub(super) const MAX_TRANSIENT: Duration = Duration::from_secs(5);
/// Time without the claim that gives back a unit of time.
const RECOVERY: u32 = 10;

#[derive(Clone, Copy, Debug)]
struct Excuse {
    spent: Duration,
    last: Duration,
}

/// Time for which each process has been excused.
#[derive(Debug, Default)]
pub(super) struct Excuses(HashMap<Identity, Excuse>);

fn identity(process: &GpuProcess) -> Option<Identity> {
    Some((process.pid?, process.start_time))
}

/// Returns whether the process says that it is making a context.
fn claims(process: &GpuProcess) -> bool {
    process.is_transient && !process.has_exited
}

impl Excuses {
    /// Counts the time since the last sample, and forgets the processes that are gone.
    pub(super) fn update(&mut self, snapshot: &Snapshot, now: Duration) {
        let shares = snapshot.containers.iter().flat_map(|container| &container.gpus);
        for process in shares.flat_map(|share| &share.processes).filter(|process| process.is_listed) {
            let Some(identity) = identity(process) else { continue };
            if !claims(process) && !self.0.contains_key(&identity) {
                continue;
            }
            let excuse = self.0.entry(identity).or_insert(Excuse { spent: Duration::ZERO, last: now });
            let passed = now.saturating_sub(excuse.last);
            excuse.spent = if claims(process) { excuse.spent + passed } else { excuse.spent.saturating_sub(passed / RECOVERY) };
            excuse.last = now;
        }
        self.0.retain(|_, excuse| excuse.last == now);
    }

    /// Returns whether the figures of a process do not count for now.
    pub(super) fn excuse(&self, process: &GpuProcess) -> bool {
        let has_time = |identity| self.0.get(&identity).is_none_or(|excuse| excuse.spent <= MAX_TRANSIENT);
        claims(process) && identity(process).is_none_or(has_time)
    }
}
