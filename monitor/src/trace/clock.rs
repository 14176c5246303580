//! The GPU's times on the host's clock.
//!
//! Each context counts time from anywhere. Work never begins on the GPU before the call that asks for it, and in an idle GPU right
//! after it: the largest difference seen is the one between the clocks.

use std::collections::HashMap;

/// Contexts and streams that are told apart. A tenant could claim any number.
const MOST: usize = 4096;
/// Clocks may drift apart by one part in so many.
const DRIFT: u64 = 100_000;

#[derive(Clone, Copy, Debug)]
struct Difference {
    value: i64,
    at: u64,
}

/// All contexts' clocks.
#[derive(Debug, Default)]
pub struct Clocks {
    contexts: HashMap<(u32, u8), Difference>,
    streams: HashMap<(u32, u8, u64), u64>,
}

impl Clocks {
    /// When work began by the host's clock, and how long it took, so that work of one stream does not overlap. `at` is when it was asked for.
    pub fn place(&mut self, (pid, context, stream): (u32, u8, u64), at: u64, begin: u64, took: u64) -> Option<(u64, u64)> {
        if self.contexts.len() > MOST || self.streams.len() > MOST {
            self.contexts.clear();
            self.streams.clear();
        }
        let here = at.wrapping_sub(begin) as i64;
        let known = self.contexts.entry((pid, context)).or_insert(Difference { value: here, at });
        let drifted = known.value.saturating_sub((at.saturating_sub(known.at) / DRIFT) as i64);
        *known = Difference { value: drifted.max(here), at: at.max(known.at) };
        let begin = begin.checked_add_signed(known.value)?;
        let end = begin.checked_add(took)?;
        let last = self.streams.entry((pid, context, stream)).or_insert(0);
        let begin = begin.max(*last).min(end.max(*last));
        let end = end.max(begin);
        *last = end;
        Some((begin, end - begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_begins_no_sooner_than_it_was_asked_for() {
        let mut clocks = Clocks::default();
        let key = (1, 0, 7);
        // The GPU's clock is 1,000,000 behind; the first launch begins 5 later, the second waits for it.
        assert_eq!(clocks.place(key, 2_000_000, 1_000_005, 100), Some((2_000_000, 100)));
        assert_eq!(clocks.place(key, 2_000_010, 1_000_105, 100), Some((2_000_100, 100)));
        // An idle GPU tells the difference better.
        assert_eq!(clocks.place(key, 2_001_000, 1_001_002, 50), Some((2_001_000, 50)));
        assert_eq!(clocks.place((1, 0, 8), 2_001_010, 1_001_022, 50), Some((2_001_020, 50)));
    }

    #[test]
    fn work_of_one_stream_does_not_overlap() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.place((1, 0, 7), 1000, 500, 100), Some((1000, 100)));
        assert_eq!(clocks.place((1, 0, 7), 1000, 590, 100), Some((1100, 90)));
        assert_eq!(clocks.place((1, 0, 7), 1000, 590, 10), Some((1190, 0)));
        assert_eq!(clocks.place((1, 0, 8), 1000, 590, 10), Some((1090, 10)));
    }

    #[test]
    fn nonsense_has_no_time() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.place((1, 0, 7), 5, u64::MAX, u64::MAX), None);
        for number in 0..10_000u64 {
            clocks.place((number as u32, 0, number), number, number << 40, number);
        }
        assert!(clocks.contexts.len() <= MOST + 1 && clocks.streams.len() <= MOST + 1);
    }
}
