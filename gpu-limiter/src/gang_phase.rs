//! Streams side by side: how far each has come since launches were last held back.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Threads that are held back together go on within so many nanoseconds.
const ROUND: u64 = 1_000_000;
/// A stream that has had so many nanoseconds less than another, and no more, was launched into at the same time.
const KEPT_UP: u64 = 1_600_000;

/// Streams that run side by side stop side by side, or the GPU would run the last launches of each burst one by one, and what is got
/// done in the time that is charged would be less than without a limit. A round begins when launches go on after they were held back.
#[derive(Debug, Default)]
pub struct Rounds {
    number: AtomicU32,
    began: AtomicU64,
    /// Nanoseconds expected of what the stream that had the most was given in this round.
    furthest: AtomicU64,
    members: AtomicU32,
    abreast: AtomicU32,
}

/// What one stream had in a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Had {
    number: u32,
    /// Nanoseconds expected of its launches.
    pub nanos: u64,
}

impl Rounds {
    /// Begins the next round, unless another thread that was held back has just done it.
    pub fn begin(&self, now: u64) {
        let began = self.began.load(Relaxed);
        if now.saturating_sub(began) > ROUND && self.began.compare_exchange(began, now, AcqRel, Relaxed).is_ok() {
            self.abreast.store(self.members.swap(0, Relaxed), Relaxed);
            self.furthest.store(0, Relaxed);
            self.number.fetch_add(1, AcqRel);
        }
    }

    /// How many streams were at work in the last round.
    pub fn abreast(&self) -> u64 {
        u64::from(self.abreast.load(Relaxed).max(1))
    }

    /// Whether the stream has not had a launch in this round.
    pub fn is_new(&self, had: Had) -> bool {
        had.number != self.number.load(Acquire)
    }

    /// Whether the stream may have another `cost` nanoseconds without passing what others had already. One that is far behind was not
    /// launched into, and is not given everything that the others had.
    pub fn is_behind(&self, had: Had, cost: u64) -> bool {
        let nanos = if self.is_new(had) { 0 } else { had.nanos };
        let furthest = self.furthest.load(Relaxed);
        nanos + cost <= furthest && furthest - nanos <= cost.max(KEPT_UP)
    }

    /// Notes that the stream takes part in the round.
    pub fn join(&self, had: &mut Had) {
        let number = self.number.load(Acquire);
        if had.number != number {
            *had = Had { number, nanos: 0 };
            self.members.fetch_add(1, Relaxed);
        }
    }

    /// Notes how much a stream has had in the round.
    pub fn reach(&self, had: Had) {
        if !self.is_new(had) && had.nanos > self.furthest.load(Relaxed) {
            self.furthest.store(had.nanos, Relaxed);
        }
    }
}
