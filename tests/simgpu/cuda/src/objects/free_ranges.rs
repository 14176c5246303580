//! Free address ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Disjoint, coalesced ranges, indexed by address and by length.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FreeRanges {
    by_address: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl FreeRanges {
    /// Returns the start of the lowest range of at least `length`.
    pub fn first_fit(&self, length: u64) -> Option<u64> {
        self.by_address.iter().find(|&(_, &room)| room >= length).map(|(&start, _)| start)
    }

    /// Returns the start of the smallest range of at least `length`.
    pub fn best_fit(&self, length: u64) -> Option<u64> {
        self.by_length.range((length, 0)..).next().map(|&(_, start)| start)
    }

    /// Takes `length` from the front of the range at `start`, which must be long enough.
    pub fn take(&mut self, start: u64, length: u64) {
        let Some(room) = self.remove(start) else { return };
        if room > length {
            self.insert(start + length, room - length);
        }
    }

    /// Adds a range and coalesces it with adjacent ranges within `bounds`.
    pub fn add(&mut self, mut start: u64, mut length: u64, bounds: Range<u64>) {
        let before = self.by_address.range(bounds.start..start).next_back();
        if let Some((&before, &before_length)) = before.filter(|(before, length)| *before + *length == start) {
            self.remove(before);
            (start, length) = (before, length + before_length);
        }
        if start + length < bounds.end
            && let Some(behind) = self.remove(start + length)
        {
            length += behind;
        }
        self.insert(start, length);
    }

    /// Removes the range at `start` and returns its length.
    pub fn remove(&mut self, start: u64) -> Option<u64> {
        let length = self.by_address.remove(&start)?;
        self.by_length.remove(&(length, start));
        Some(length)
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.by_address.insert(start, length);
        self.by_length.insert((length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_coalesce_only_within_bounds() {
        let mut ranges = FreeRanges::default();
        ranges.add(100, 50, 0..200);
        ranges.add(200, 50, 200..400);
        ranges.add(150, 50, 0..200);
        ranges.add(300, 50, 200..400);
        assert_eq!((ranges.first_fit(100), ranges.first_fit(101), ranges.best_fit(50)), (Some(100), None, Some(200)));
        ranges.add(250, 50, 200..400);
        assert_eq!((ranges.first_fit(101), ranges.best_fit(101)), (Some(200), Some(200)));
        ranges.take(200, 60);
        assert_eq!((ranges.remove(260), ranges.remove(100), ranges), (Some(90), Some(100), FreeRanges::default()));
    }
}
