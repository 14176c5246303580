//! Uncharged gaps on the GPU's timeline. Work that lay in another stream during a gap is known only when its batch ends.

/// Number of gaps that are remembered.
const CAPACITY: usize = 64;

/// The most recent gaps.
#[derive(Debug)]
pub struct IdleGaps {
    /// Start and end of each gap on the timeline, in nanoseconds. No two overlap.
    gaps: [(u64, u64); CAPACITY],
    next: usize,
}

impl IdleGaps {
    /// Returns an empty set.
    pub const fn new() -> Self {
        Self { gaps: [(0, 0); CAPACITY], next: 0 }
    }

    /// Records a gap. An empty one is ignored.
    pub fn record(&mut self, from: u64, to: u64) {
        if let Some(place) = self.gaps.get_mut(self.next % CAPACITY).filter(|_| from < to) {
            *place = (from, to);
            self.next += 1;
        }
    }

    /// Removes everything after `from` from the gaps, because work ran from there past all of them. Returns the nanoseconds removed.
    pub fn fill_from(&mut self, from: u64) -> u64 {
        let filled = self.gaps.iter_mut().filter(|(_, to)| *to > from).map(|(begun, to)| {
            let left = from.max(*begun);
            core::mem::replace(to, left) - left
        });
        filled.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_filled_once() {
        let mut gaps = IdleGaps::new();
        gaps.record(100, 200);
        gaps.record(300, 500);
        gaps.record(700, 700);
        assert_eq!(gaps.fill_from(600), 0, "the work began after all gaps");
        assert_eq!(gaps.fill_from(400), 100);
        assert_eq!(gaps.fill_from(400), 0);
        assert_eq!(gaps.fill_from(150), 150, "the rest of both");
        assert_eq!((gaps.fill_from(0), gaps.fill_from(0)), (50, 0));
    }

    #[test]
    fn old_gaps_are_forgotten() {
        let mut gaps = IdleGaps::new();
        (1..=1000).for_each(|number| gaps.record(10 * number, 10 * number + 2));
        assert_eq!(gaps.fill_from(0), 2 * CAPACITY as u64);
    }
}
