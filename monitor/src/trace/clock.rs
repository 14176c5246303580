//! Mapping of the GPU's times to the host's clock.
//!
//! Each context's clock has an unknown origin. Work never begins on the GPU before its call, and begins right after it on an idle GPU, so
//! the offset between the clocks is the largest one observed.

use std::collections::HashMap;

/// Upper limit of contexts and of streams, as a tenant may claim any number.
const MAX_ENTRIES: usize = 4096;
/// Reciprocal of the largest relative drift between the clocks.
const DRIFT: u64 = 100_000;

/// Offset of a context's clock in nanoseconds, as of the host's time `at`.
#[derive(Clone, Copy, Debug)]
struct Offset {
    value: i64,
    at: u64,
}

/// Clocks of all contexts.
#[derive(Debug, Default)]
pub struct Clocks {
    contexts: HashMap<(u32, u8), Offset>,
    /// End of the last work of each stream.
    streams: HashMap<(u32, u8, u64), u64>,
}

impl Clocks {
    /// Returns begin and duration of work by the host's clock, so that work of one stream does not overlap. The call for it was at `at`, by the
    /// host's clock; `begin` is by the context's. All times are nanoseconds. `None` if they overflow.
    pub fn map_to_host(&mut self, (pid, context, stream): (u32, u8, u64), at: u64, begin: u64, took: u64) -> Option<(u64, u64)> {
        if self.contexts.len() > MAX_ENTRIES || self.streams.len() > MAX_ENTRIES {
            self.contexts.clear();
            self.streams.clear();
        }
        let here = at.wrapping_sub(begin) as i64;
        let known = self.contexts.entry((pid, context)).or_insert(Offset { value: here, at });
        let drifted = known.value.saturating_sub((at.saturating_sub(known.at) / DRIFT) as i64);
        *known = Offset { value: drifted.max(here), at: at.max(known.at) };
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
    fn work_begins_no_earlier_than_its_call() {
        let mut clocks = Clocks::default();
        let key = (1, 0, 7);
        // The GPU's clock is 1,000,000 behind. The first launch begins 5 later, the second one waits for it.
        assert_eq!(clocks.map_to_host(key, 2_000_000, 1_000_005, 100), Some((2_000_000, 100)));
        assert_eq!(clocks.map_to_host(key, 2_000_010, 1_000_105, 100), Some((2_000_100, 100)));
        // An idle GPU shows the offset more exactly.
        assert_eq!(clocks.map_to_host(key, 2_001_000, 1_001_002, 50), Some((2_001_000, 50)));
        assert_eq!(clocks.map_to_host((1, 0, 8), 2_001_010, 1_001_022, 50), Some((2_001_020, 50)));
    }

    #[test]
    fn work_of_one_stream_does_not_overlap() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.map_to_host((1, 0, 7), 1000, 500, 100), Some((1000, 100)));
        assert_eq!(clocks.map_to_host((1, 0, 7), 1000, 590, 100), Some((1100, 90)));
        assert_eq!(clocks.map_to_host((1, 0, 7), 1000, 590, 10), Some((1190, 0)));
        assert_eq!(clocks.map_to_host((1, 0, 8), 1000, 590, 10), Some((1090, 10)));
    }

    #[test]
    fn overflowing_times_are_dropped() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.map_to_host((1, 0, 7), 5, u64::MAX, u64::MAX), None);
        for number in 0..10_000u64 {
            clocks.map_to_host((number as u32, 0, number), number, number << 40, number);
        }
        assert!(clocks.contexts.len() <= MAX_ENTRIES + 1 && clocks.streams.len() <= MAX_ENTRIES + 1);
    }
}
