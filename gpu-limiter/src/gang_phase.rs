//! Gang phases: streams that run side by side are held back and released together.
//!
//! If they were not, the GPU would run the last launches of each burst one by one, and the program would get less done in the time that it
//! is charged for than without a limit. A phase begins when launches resume after they were held back.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::tuning::{BATCH_NS, MIN_PAUSE_NS};

/// A stream that lags the leader by at most two batches was launched into at the same time. In nanoseconds.
const MAX_LAG_NS: u64 = 2 * BATCH_NS;

/// The current phase of the process's streams on one GPU.
#[derive(Debug, Default)]
pub struct GangPhase {
    number: AtomicU32,
    began_at: AtomicU64,
    /// Expected GPU time that the leading stream was given in this phase, in nanoseconds.
    leader_ns: AtomicU64,
    members: AtomicU32,
    members_before: AtomicU32,
}

/// One stream's progress in a phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseProgress {
    number: u32,
    /// Expected GPU time of the stream's launches in the phase, in nanoseconds.
    pub given_ns: u64,
}

impl GangPhase {
    /// Begins the next phase, unless another thread that was held back has just begun it: those held back together resume in a moment.
    pub fn begin_next(&self, now: u64) {
        let began_at = self.began_at.load(Relaxed);
        if now.saturating_sub(began_at) > MIN_PAUSE_NS && self.began_at.compare_exchange(began_at, now, AcqRel, Relaxed).is_ok() {
            self.members_before.store(self.members.swap(0, Relaxed), Relaxed);
            self.leader_ns.store(0, Relaxed);
            self.number.fetch_add(1, AcqRel);
        }
    }

    /// Returns the number of streams that launched in the previous phase, at least 1.
    pub fn stream_count(&self) -> u64 {
        u64::from(self.members_before.load(Relaxed).max(1))
    }

    /// Returns true if the stream has no launch in the current phase yet.
    pub fn is_new(&self, progress: PhaseProgress) -> bool {
        progress.number != self.number.load(Acquire)
    }

    /// Returns true if the stream may be given another `cost_ns` nanoseconds without passing the leader. A stream that is far behind was
    /// not launched into, and does not get everything that the leader got.
    pub fn may_catch_up(&self, progress: PhaseProgress, cost_ns: u64) -> bool {
        let given_ns = if self.is_new(progress) { 0 } else { progress.given_ns };
        let leader_ns = self.leader_ns.load(Relaxed);
        given_ns + cost_ns <= leader_ns && leader_ns - given_ns <= cost_ns.max(MAX_LAG_NS)
    }

    /// Adds the stream to the current phase.
    pub fn join(&self, progress: &mut PhaseProgress) {
        let number = self.number.load(Acquire);
        if progress.number != number {
            *progress = PhaseProgress { number, given_ns: 0 };
            self.members.fetch_add(1, Relaxed);
        }
    }

    /// Raises the leader's time to that of the stream, if the stream has passed it.
    pub fn advance_leader(&self, progress: PhaseProgress) {
        if !self.is_new(progress) && progress.given_ns > self.leader_ns.load(Relaxed) {
            self.leader_ns.store(progress.given_ns, Relaxed);
        }
    }
}
