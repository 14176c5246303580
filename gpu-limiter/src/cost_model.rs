//! What each kind of launch is known to cost: one entry for a function with its grid and block, learned from measured batches.
//!
//! The costs decide how much may be in flight and where a batch ends. What is *charged* is measured, so a wrong entry makes the
//! pace uneven for a moment and nothing else; but for kinds that wait for other GPUs, of which no more is charged than is known.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// How many kinds are remembered. When they are all taken, a new kind takes the place of an old one.
pub const KINDS: usize = 4096;
const PROBES: usize = 8;
/// Nanoseconds stand above so many bits that count the first measurements.
const COUNT_BITS: u32 = 3;
/// So many first measurements count as early: the least of them is taken, since the first runs hold one-time work.
const EARLY: u32 = 7;
/// What takes longer is entered as this many nanoseconds.
const LONGEST: u32 = u32::MAX >> COUNT_BITS;
/// What waits for other GPUs is taken to cost more by at most one part in so many with each batch that took longer.
const RISE: u32 = 8;

/// The place of a kind in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind(pub u16);

/// The table. All zero is empty.
#[derive(Debug)]
pub struct Costs {
    keys: [AtomicU64; KINDS],
    nanos: [AtomicU32; KINDS],
    /// A bit for each kind that waits for other GPUs, and whether there is any.
    collective: [AtomicU64; KINDS / 64],
    has_collective: AtomicBool,
}

/// A key from the words that tell one kind of launch from another.
#[inline]
pub fn key(words: &[u64]) -> u64 {
    let mixed =
        words.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, word| (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29));
    (mixed ^ mixed >> 32) | 1
}

impl Costs {
    /// The kind with this key, entered now if it is new.
    #[inline]
    pub fn kind(&self, key: u64) -> Kind {
        let start = (key >> 40) as usize;
        for step in 0..PROBES {
            let place = start.wrapping_add(step) % KINDS;
            let Some(there) = self.keys.get(place) else { break };
            match there.load(Relaxed) {
                found if found == key => return Kind(place as u16),
                0 => {
                    there.store(key, Relaxed);
                    return Kind(place as u16);
                }
                _ => {}
            }
        }
        self.replace(start % KINDS, key)
    }

    #[cold]
    fn replace(&self, place: usize, key: u64) -> Kind {
        if let (Some(there), Some(nanos)) = (self.keys.get(place), self.nanos.get(place)) {
            self.set_collective(Kind(place as u16), false);
            nanos.store(0, Relaxed);
            there.store(key, Relaxed);
        }
        Kind(place as u16)
    }

    /// Notes whether launches of this kind wait for other GPUs.
    pub fn set_collective(&self, kind: Kind, is: bool) {
        let Some(word) = self.collective.get(usize::from(kind.0) / 64) else { return };
        let bit = 1 << (kind.0 % 64);
        if is {
            word.fetch_or(bit, Relaxed)
        } else {
            word.fetch_and(!bit, Relaxed)
        };
        self.has_collective.fetch_or(is, Relaxed);
    }

    /// Whether they do.
    #[inline]
    pub fn is_collective(&self, kind: Kind) -> bool {
        self.has_collective.load(Relaxed)
            && self.collective.get(usize::from(kind.0) / 64).is_some_and(|word| word.load(Relaxed) >> (kind.0 % 64) & 1 != 0)
    }

    /// What a launch of this kind takes in nanoseconds, at most [`LONGEST`]; `None` before one was measured.
    #[inline]
    pub fn of(&self, kind: Kind) -> Option<u32> {
        self.entry(kind).map(|(nanos, _)| nanos)
    }

    /// The cost, and how many times it was measured, up to [`EARLY`].
    fn entry(&self, kind: Kind) -> Option<(u32, u32)> {
        let word = self.nanos.get(usize::from(kind.0))?.load(Relaxed);
        (word != 0).then_some((word >> COUNT_BITS, word & EARLY))
    }

    /// Learns from a batch of these kinds that took `measured` nanoseconds.
    pub fn learn(&self, kinds: &[Kind], measured: u64) {
        let Some(&first) = kinds.first() else { return };
        if kinds.iter().all(|&kind| kind == first) {
            return self.approach(first, measured / kinds.len() as u64);
        }
        // Which of them was off cannot be told: all move a little in the same direction, together about a quarter of the way. They are
        // compared with what is known now: what was expected at the launch is old, and many batches that were off by the same would move
        // them by it again and again.
        let expected: u64 = kinds.iter().filter_map(|&kind| self.of(kind)).map(u64::from).sum();
        let ratio = (measured * 1024 / expected.max(1)).clamp(256, 4096);
        let whole = 4096 * kinds.len() as u64;
        // In long batches each of them moves by less than a nanosecond: what is lost to rounding goes to the next.
        let mut left = whole / 2;
        for &kind in kinds {
            if let Some((known, count)) = self.entry(kind) {
                let moved = u64::from(known) * (whole - 1024 + ratio) + left;
                left = moved % whole;
                self.store(kind, moved / whole, count);
            } else {
                self.store(kind, measured / kinds.len() as u64, 1);
            }
        }
    }

    /// Learns from launches that may have waited for other GPUs, and took so many nanoseconds each. The least there was is what they take;
    /// what takes longer moves that up little by little, as it may be more work. If it does not stop, this GPU is held back for it until the
    /// others are the ones that wait, and then there is a new least.
    pub fn learn_least(&self, kind: Kind, seen: u64) {
        match self.entry(kind) {
            Some((known, count)) => self.store(kind, seen.min(u64::from(known + known / RISE + 1)), count),
            None => self.store(kind, seen, 1),
        }
    }

    /// Launches of the kind with this key are others now: what was known of it is forgotten, if it waits for other GPUs or will.
    pub fn renew(&self, key: u64, is_collective: bool) {
        let kind = self.kind(key);
        if is_collective || self.is_collective(kind) {
            self.set_collective(kind, is_collective);
            if let Some(nanos) = self.nanos.get(usize::from(kind.0)) {
                nanos.store(0, Relaxed);
            }
        }
    }

    /// Moves a kind's cost an eighth of the way to what was seen, or, early, down to it at once.
    fn approach(&self, kind: Kind, seen: u64) {
        match self.entry(kind) {
            None => self.store(kind, seen, 1),
            Some((known, count)) if count < EARLY && seen <= u64::from(known) => self.store(kind, seen, count + 1),
            Some((known, count)) => self.store(kind, (u64::from(known) * 7 + seen) / 8, (count + 1).min(EARLY)),
        }
    }

    fn store(&self, kind: Kind, nanos: u64, count: u32) {
        if let Some(place) = self.nanos.get(usize::from(kind.0)) {
            let nanos = u32::try_from(nanos.max(1)).unwrap_or(u32::MAX).min(LONGEST);
            place.store(nanos << COUNT_BITS | count, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Box<Costs> {
        // SAFETY: all zero is an empty table.
        Box::new(unsafe { std::mem::zeroed() })
    }

    #[test]
    fn learns_a_lone_kind_and_follows_it() {
        let costs = costs();
        let kind = costs.kind(key(&[1, 2]));
        assert_eq!((costs.kind(key(&[1, 2])), costs.of(kind)), (kind, None));
        costs.learn(&[kind; 4], 4_000_000);
        assert_eq!(costs.of(kind), Some(1_000_000));
        costs.learn(&[kind], 20_000);
        assert_eq!(costs.of(kind), Some(20_000), "what a first run took too much is forgotten at once");
        for _ in 0..100 {
            costs.learn(&[kind; 2], 80_000);
        }
        assert!((39_900..=40_010).contains(&costs.of(kind).unwrap()));
    }

    #[test]
    fn mixed_batches_scale_together_until_they_fit() {
        let costs = costs();
        let (a, b) = (costs.kind(key(&[1])), costs.kind(key(&[2])));
        costs.learn(&[a], 30_000);
        costs.learn(&[b], 10_000);
        for _ in 0..400 {
            costs.learn(&[a, b], 80_000);
        }
        let (a, b) = (costs.of(a).unwrap(), costs.of(b).unwrap());
        assert!((78_000..82_000).contains(&(a + b)) && a > 2 * b, "{a} {b}");
    }

    /// However many launches of a kind a batch has, it is not moved past what was seen.
    #[test]
    fn no_batch_moves_a_kind_too_far() {
        let costs = costs();
        let (a, b) = (costs.kind(key(&[1])), costs.kind(key(&[2])));
        costs.learn(&[a], 10_000);
        costs.learn(&[b], 10_000);
        let mut batch = [a; 64];
        batch[63] = b;
        for (measured, least, most) in [(64 * 20_000, 12_000, 14_000), (64 * 10_000, 10_000, 12_500), (64 * 200_000, 10_000, 26_000)] {
            costs.learn(&batch, measured);
            assert!((least..most).contains(&costs.of(a).unwrap()), "{:?} after {measured}", costs.of(a));
        }
    }

    /// A nanosecond is too much for each launch of so many, and they get there all the same.
    #[test]
    fn long_batches_of_short_kernels_are_learned_to_a_hundredth() {
        for change in [1.4, 0.7, 1.05, 0.95] {
            let costs = costs();
            let kinds: Vec<Kind> = (0..4).map(|number| costs.kind(key(&[number]))).collect();
            kinds.iter().for_each(|&kind| costs.learn(&[kind], 2_000));
            let batch: Vec<Kind> = (0..256).map(|place| kinds[place % 4]).collect();
            let took = 256.0 * 2_000.0 * change;
            (0..200).for_each(|_| costs.learn(&batch, took as u64));
            let known: f64 = batch.iter().filter_map(|&kind| costs.of(kind)).map(f64::from).sum();
            assert!((known / took - 1.0).abs() < 0.01, "{known} of {took}");
        }
    }

    #[test]
    fn what_waits_for_others_costs_about_the_least_that_was_seen() {
        let costs = costs();
        let (sum, other) = (costs.kind(key(&[1])), costs.kind(key(&[2])));
        costs.set_collective(sum, true);
        assert!(costs.is_collective(sum) && !costs.is_collective(other));
        costs.learn_least(sum, 90_000_000);
        costs.learn_least(sum, 20_000);
        assert_eq!(costs.of(sum), Some(20_000));
        costs.learn_least(sum, 90_000_000);
        assert!((20_001..23_000).contains(&costs.of(sum).unwrap()), "it waited");
        (0..100).for_each(|_| costs.learn_least(sum, 40_000));
        assert_eq!(costs.of(sum), Some(40_000), "there is more to add up");
        costs.renew(key(&[1]), false);
        assert_eq!((costs.of(sum), costs.is_collective(sum)), (None, false));
    }

    #[test]
    fn a_full_table_forgets_instead_of_failing() {
        let costs = costs();
        for number in 0..3 * KINDS as u64 {
            let kind = costs.kind(key(&[number, 7]));
            assert!(usize::from(kind.0) < KINDS);
            costs.learn(&[kind], number + 1);
        }
        let kind = costs.kind(key(&[77, 77]));
        assert!(costs.of(kind).is_none());
    }
}
