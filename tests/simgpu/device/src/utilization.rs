//! Busy time in tenths of a second, for NVML's utilization figures.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::layout::{BUCKETS, BusyTime};
use crate::scheduler::now_ns;

/// Length of a bucket, ns.
pub const TENTH_NS: u64 = 100_000_000;

impl BusyTime {
    /// Adds the busy time from `start` to `end`, ns. Called under the GPU's scheduler mutex.
    pub fn add(&self, start: u64, end: u64) {
        self.total_ns.fetch_add(end.saturating_sub(start), Ordering::Relaxed);
        let mut at = start;
        while at < end {
            let tenth = at / TENTH_NS;
            let until = end.min((tenth + 1) * TENTH_NS);
            let bucket = tenth as usize % BUCKETS;
            if self.tenths[bucket].swap(tenth, Ordering::Relaxed) != tenth {
                self.ns[bucket].store(0, Ordering::Relaxed);
            }
            self.ns[bucket].fetch_add(until - at, Ordering::Relaxed);
            at = until;
        }
    }

    /// Returns the busy percent of the last ten full tenths of a second.
    pub fn percent(&self) -> u32 {
        self.percent_before(now_ns() / TENTH_NS)
    }

    fn percent_before(&self, tenth: u64) -> u32 {
        self.percent_of(tenth.saturating_sub(10)..tenth)
    }

    /// Returns the busy percent of these tenths of a second, of which only the last ones are known.
    pub fn percent_of(&self, tenths: Range<u64>) -> u32 {
        let recent = (0..BUCKETS).filter(|&bucket| tenths.contains(&self.tenths[bucket].load(Ordering::Relaxed)));
        let busy = recent.map(|bucket| self.ns[bucket].load(Ordering::Relaxed)).sum::<u64>();
        let all = (tenths.end - tenths.start).max(1) * TENTH_NS;
        u32::try_from((busy.saturating_mul(100) / all).min(100)).unwrap_or(100)
    }

    /// Returns the total busy time, ns.
    pub fn total(&self) -> u64 {
        self.total_ns.load(Ordering::Relaxed)
    }

    /// Clears all figures.
    pub fn clear(&self) {
        for (tenth, ns) in self.tenths.iter().zip(&self.ns) {
            tenth.store(0, Ordering::Relaxed);
            ns.store(0, Ordering::Relaxed);
        }
        self.total_ns.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_covers_the_last_second() {
        // SAFETY: all-zero atomics are valid.
        let busy = unsafe { std::mem::zeroed::<BusyTime>() };
        let second = 10 * TENTH_NS;
        busy.add(5 * second, 5 * second + second / 2);
        assert_eq!(busy.percent_before(60), 50);
        assert_eq!(busy.percent_before(62), 30, "busy time older than a second does not count");
        assert_eq!((busy.percent_of(53..55), busy.percent_of(54..58), busy.percent_of(55..56)), (100, 25, 0));
        assert_eq!(busy.total(), second / 2);
        busy.clear();
        assert_eq!(busy.percent_before(60), 0);
    }
}
