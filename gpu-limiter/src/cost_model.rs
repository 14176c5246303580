//! What a launch of each kind costs. A kind is a function with its grid and block; its cost is learned from measured batches.
//!
//! The costs decide how much work may be in flight and where a batch ends. What is *charged* is measured, so a wrong cost only makes the
//! pace uneven for a moment. The exception are kinds that wait for other GPUs: they are charged at most their known cost.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Capacity in kinds. In a full table a new kind replaces an old one.
pub const CAPACITY: usize = 4096;
const PROBES: usize = 8;
/// Low bits of a cost word that count the first measurements; the cost in nanoseconds is above them.
const COUNT_BITS: u32 = 3;
/// Number of first measurements of which the smallest counts: the first runs include one-time work.
const FIRST_MEASUREMENTS: u32 = 7;
/// Highest cost, in nanoseconds. Longer launches are entered with this cost.
pub const MAX_COST_NS: u32 = u32::MAX >> COUNT_BITS;
/// Largest rise of the cost of a collective kind by one longer batch, as a divisor of the cost.
const COLLECTIVE_RISE: u32 = 8;

/// A kind of launch: its place in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchKind(pub(crate) u16);

/// The table of costs. All zero is empty.
#[derive(Debug)]
pub struct CostModel {
    keys: [AtomicU64; CAPACITY],
    costs: [AtomicU32; CAPACITY],
    /// One bit for each kind, set if it is collective: it may wait for other GPUs.
    collective: [AtomicU64; CAPACITY / 64],
    has_collective: AtomicBool,
}

/// Returns the key of a kind of launch, from the words that distinguish it from other kinds.
#[inline]
pub fn key(words: &[u64]) -> u64 {
    let mixed =
        words.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, word| (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29));
    (mixed ^ mixed >> 32) | 1
}

impl CostModel {
    /// Returns the kind with this key, which is added if it is new.
    #[inline]
    pub fn kind(&self, key: u64) -> LaunchKind {
        let start = (key >> 40) as usize;
        for step in 0..PROBES {
            let place = start.wrapping_add(step) % CAPACITY;
            let Some(there) = self.keys.get(place) else { break };
            match there.load(Relaxed) {
                found if found == key => return LaunchKind(place as u16),
                0 => {
                    there.store(key, Relaxed);
                    return LaunchKind(place as u16);
                }
                _ => {}
            }
        }
        self.replace(start % CAPACITY, key)
    }

    #[cold]
    fn replace(&self, place: usize, key: u64) -> LaunchKind {
        if let (Some(there), Some(cost)) = (self.keys.get(place), self.costs.get(place)) {
            self.set_collective(LaunchKind(place as u16), false);
            cost.store(0, Relaxed);
            there.store(key, Relaxed);
        }
        LaunchKind(place as u16)
    }

    /// Sets whether launches of this kind may wait for other GPUs.
    pub fn set_collective(&self, kind: LaunchKind, is_collective: bool) {
        let Some(word) = self.collective.get(usize::from(kind.0) / 64) else { return };
        let bit = 1 << (kind.0 % 64);
        if is_collective {
            word.fetch_or(bit, Relaxed)
        } else {
            word.fetch_and(!bit, Relaxed)
        };
        self.has_collective.fetch_or(is_collective, Relaxed);
    }

    /// Returns true if launches of this kind may wait for other GPUs.
    #[inline]
    pub fn is_collective(&self, kind: LaunchKind) -> bool {
        self.has_collective.load(Relaxed)
            && self.collective.get(usize::from(kind.0) / 64).is_some_and(|word| word.load(Relaxed) >> (kind.0 % 64) & 1 != 0)
    }

    /// Returns the cost of a launch of this kind in nanoseconds, at most [`MAX_COST_NS`]. Returns `None` if none was measured yet.
    #[inline]
    pub fn cost_ns(&self, kind: LaunchKind) -> Option<u32> {
        self.entry(kind).map(|(cost_ns, _)| cost_ns)
    }

    /// Returns the cost and the number of measurements, up to [`FIRST_MEASUREMENTS`].
    fn entry(&self, kind: LaunchKind) -> Option<(u32, u32)> {
        let word = self.costs.get(usize::from(kind.0))?.load(Relaxed);
        (word != 0).then_some((word >> COUNT_BITS, word & FIRST_MEASUREMENTS))
    }

    /// Learns from a batch of launches of these kinds that took `measured_ns` nanoseconds.
    pub fn learn(&self, kinds: &[LaunchKind], measured_ns: u64) {
        let Some(&first) = kinds.first() else { return };
        if kinds.iter().all(|&kind| kind == first) {
            return self.approach(first, measured_ns / kinds.len() as u64);
        }
        // It is not known which kind's cost is wrong. All move a little in the same direction, together about a quarter of the way. The
        // reference is the sum of the present costs. The sum at the time of the launch is old: many batches with the same error would move
        // the costs again and again.
        let expected_ns: u64 = kinds.iter().filter_map(|&kind| self.cost_ns(kind)).map(u64::from).sum();
        let ratio = (measured_ns * 1024 / expected_ns.max(1)).clamp(256, 4096);
        let whole = 4096 * kinds.len() as u64;
        // In long batches each launch moves by less than a nanosecond: the rounding error is carried to the next one.
        let mut carry = whole / 2;
        for &kind in kinds {
            if let Some((known_ns, count)) = self.entry(kind) {
                let moved = u64::from(known_ns) * (whole - 1024 + ratio) + carry;
                carry = moved % whole;
                self.store(kind, moved / whole, count);
            } else {
                self.store(kind, measured_ns / kinds.len() as u64, 1);
            }
        }
    }

    /// Learns from launches of a collective kind that took `measured_ns` nanoseconds each. They may have waited for other GPUs, so the
    /// smallest measurement is the cost. A longer one raises it slowly, as there may be more work. If the rise were wrong and went on, this
    /// GPU would be held back for it until the other GPUs are the ones that wait, and the next measurement is a new minimum.
    pub fn learn_collective(&self, kind: LaunchKind, measured_ns: u64) {
        match self.entry(kind) {
            Some((known_ns, count)) => self.store(kind, measured_ns.min(u64::from(known_ns + known_ns / COLLECTIVE_RISE + 1)), count),
            None => self.store(kind, measured_ns, 1),
        }
    }

    /// Records that launches with this key now do other work, and whether that waits for other GPUs. Forgets the cost if the old or the new
    /// work does.
    pub fn redefine(&self, key: u64, is_collective: bool) {
        let kind = self.kind(key);
        if is_collective || self.is_collective(kind) {
            self.set_collective(kind, is_collective);
            if let Some(cost) = self.costs.get(usize::from(kind.0)) {
                cost.store(0, Relaxed);
            }
        }
    }

    /// Moves a kind's cost an eighth of the way to the measurement. One of the first measurements that is lower replaces it.
    fn approach(&self, kind: LaunchKind, measured_ns: u64) {
        match self.entry(kind) {
            None => self.store(kind, measured_ns, 1),
            Some((known_ns, count)) if count < FIRST_MEASUREMENTS && measured_ns <= u64::from(known_ns) => {
                self.store(kind, measured_ns, count + 1)
            }
            Some((known_ns, count)) => self.store(kind, (u64::from(known_ns) * 7 + measured_ns) / 8, (count + 1).min(FIRST_MEASUREMENTS)),
        }
    }

    fn store(&self, kind: LaunchKind, cost_ns: u64, count: u32) {
        if let Some(place) = self.costs.get(usize::from(kind.0)) {
            let cost_ns = u32::try_from(cost_ns.max(1)).unwrap_or(u32::MAX).min(MAX_COST_NS);
            place.store(cost_ns << COUNT_BITS | count, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Box<CostModel> {
        // SAFETY: an all-zero table is empty and valid.
        Box::new(unsafe { std::mem::zeroed() })
    }

    #[test]
    fn uniform_batches_are_learned_and_followed() {
        let costs = costs();
        let kind = costs.kind(key(&[1, 2]));
        assert_eq!((costs.kind(key(&[1, 2])), costs.cost_ns(kind)), (kind, None));
        costs.learn(&[kind; 4], 4_000_000);
        assert_eq!(costs.cost_ns(kind), Some(1_000_000));
        costs.learn(&[kind], 20_000);
        assert_eq!(costs.cost_ns(kind), Some(20_000), "one-time work of the first run is forgotten at once");
        for _ in 0..100 {
            costs.learn(&[kind; 2], 80_000);
        }
        assert!((39_900..=40_010).contains(&costs.cost_ns(kind).unwrap()));
    }

    #[test]
    fn mixed_batches_scale_together_until_they_match() {
        let costs = costs();
        let (a, b) = (costs.kind(key(&[1])), costs.kind(key(&[2])));
        costs.learn(&[a], 30_000);
        costs.learn(&[b], 10_000);
        for _ in 0..400 {
            costs.learn(&[a, b], 80_000);
        }
        let (a, b) = (costs.cost_ns(a).unwrap(), costs.cost_ns(b).unwrap());
        assert!((78_000..82_000).contains(&(a + b)) && a > 2 * b, "{a} {b}");
    }

    /// A batch with many launches of a kind does not move its cost past the measurement.
    #[test]
    fn one_batch_moves_a_cost_by_a_bounded_part() {
        let costs = costs();
        let (a, b) = (costs.kind(key(&[1])), costs.kind(key(&[2])));
        costs.learn(&[a], 10_000);
        costs.learn(&[b], 10_000);
        let mut batch = [a; 64];
        batch[63] = b;
        for (measured, least, most) in [(64 * 20_000, 12_000, 14_000), (64 * 10_000, 10_000, 12_500), (64 * 200_000, 10_000, 26_000)] {
            costs.learn(&batch, measured);
            assert!((least..most).contains(&costs.cost_ns(a).unwrap()), "{:?} after {measured}", costs.cost_ns(a));
        }
    }

    /// The change for each launch is below a nanosecond, and must not be lost to rounding.
    #[test]
    fn long_batches_of_short_kernels_are_learned_to_one_percent() {
        for change in [1.4, 0.7, 1.05, 0.95] {
            let costs = costs();
            let kinds: Vec<LaunchKind> = (0..4).map(|number| costs.kind(key(&[number]))).collect();
            kinds.iter().for_each(|&kind| costs.learn(&[kind], 2_000));
            let batch: Vec<LaunchKind> = (0..256).map(|place| kinds[place % 4]).collect();
            let took = 256.0 * 2_000.0 * change;
            (0..200).for_each(|_| costs.learn(&batch, took as u64));
            let known: f64 = batch.iter().filter_map(|&kind| costs.cost_ns(kind)).map(f64::from).sum();
            assert!((known / took - 1.0).abs() < 0.01, "{known} of {took}");
        }
    }

    #[test]
    fn collective_kinds_cost_about_the_minimum_measured() {
        let costs = costs();
        let (sum, other) = (costs.kind(key(&[1])), costs.kind(key(&[2])));
        costs.set_collective(sum, true);
        assert!(costs.is_collective(sum) && !costs.is_collective(other));
        costs.learn_collective(sum, 90_000_000);
        costs.learn_collective(sum, 20_000);
        assert_eq!(costs.cost_ns(sum), Some(20_000));
        costs.learn_collective(sum, 90_000_000);
        assert!((20_001..23_000).contains(&costs.cost_ns(sum).unwrap()), "it waited");
        (0..100).for_each(|_| costs.learn_collective(sum, 40_000));
        assert_eq!(costs.cost_ns(sum), Some(40_000), "there is more work");
        costs.redefine(key(&[1]), false);
        assert_eq!((costs.cost_ns(sum), costs.is_collective(sum)), (None, false));
    }

    #[test]
    fn a_full_table_replaces_old_kinds() {
        let costs = costs();
        for number in 0..3 * CAPACITY as u64 {
            let kind = costs.kind(key(&[number, 7]));
            assert!(usize::from(kind.0) < CAPACITY);
            costs.learn(&[kind], number + 1);
        }
        let kind = costs.kind(key(&[77, 77]));
        assert!(costs.cost_ns(kind).is_none());
    }
}
