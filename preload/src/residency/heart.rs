//! The arbiter's heartbeat: an arbiter that was killed leaves its words as they are, and nobody may wait for it.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Time after which an arbiter whose heart does not beat counts as gone, in nanoseconds.
const GONE_AFTER_NS: u64 = 1_000_000_000;

/// What was seen of a heartbeat. All zero: nothing yet.
#[derive(Debug)]
pub struct Heart {
    /// The last beat.
    beat: AtomicU32,
    /// When it was first seen, in nanoseconds; 0 if nothing was seen yet.
    since: AtomicU64,
}

impl Heart {
    /// Returns a heart of which nothing was seen.
    pub const fn new() -> Self {
        Self { beat: AtomicU32::new(0), since: AtomicU64::new(0) }
    }

    /// Returns whether the arbiter lives, whose beat is this one now. Of two threads that see the same new beat, one may take it for an old
    /// one once.
    pub fn is_alive(&self, beat: u32, now: u64) -> bool {
        if self.beat.swap(beat, Relaxed) != beat || self.since.load(Relaxed) == 0 {
            self.since.store(now.max(1), Relaxed);
        }
        now.saturating_sub(self.since.load(Relaxed)) <= GONE_AFTER_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heart_that_stands_still_is_dead_until_it_beats_again() {
        let (heart, begin) = (Heart::new(), 5_000_000_000);
        assert!(heart.is_alive(7, begin) && heart.is_alive(7, begin + GONE_AFTER_NS));
        assert!(!heart.is_alive(7, begin + GONE_AFTER_NS + 1) && !heart.is_alive(7, begin + 9 * GONE_AFTER_NS));
        assert!(heart.is_alive(8, begin + 9 * GONE_AFTER_NS) && heart.is_alive(8, begin + 10 * GONE_AFTER_NS));
        assert!(!heart.is_alive(8, begin + 10 * GONE_AFTER_NS + 1));
    }
}
