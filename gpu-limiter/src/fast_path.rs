//! The fast path: launches that do not read the clock. They are counted here, and added to the stream's batch later, all at once. A few short
//! launches after one that read the clock may take it.
//!
//! The next launch that reads the clock, or the end of the batch, detects a pause before one of them ([`crate::batch_close::has_paused`]).

use crate::cost_model::{CostModel, LaunchKind};
use crate::tuning::MIN_PAUSE_NS;

/// Most launches in a row that take the fast path.
const MAX_LAUNCHES: usize = 15;
/// Most expected GPU time of these launches, in nanoseconds. A pause before them may look shorter than it was by this much.
const MAX_TOTAL_NS: u64 = MIN_PAUSE_NS / 8;

/// The launches that may take the fast path, and those that did. All zero is none.
#[derive(Debug, Default)]
pub struct FastPath {
    /// Key, cost in nanoseconds, and kind of the last launch.
    key: u64,
    cost_ns: u32,
    /// Expected GPU time that further launches may have, in nanoseconds.
    left_ns: u32,
    /// Expected GPU time of the launches made, in nanoseconds.
    launched_ns: u32,
    kind: LaunchKind,
    /// Number of launches allowed and made.
    allowed: u8,
    count: u8,
    kinds: [LaunchKind; MAX_LAUNCHES],
}

impl FastPath {
    /// Allows up to `launches` launches with up to `total_ns` nanoseconds of expected GPU time after the one described.
    pub fn allow(&mut self, key: u64, (kind, cost_ns): (LaunchKind, u64), launches: usize, total_ns: u64) {
        let cost_ns = u32::try_from(cost_ns).unwrap_or(u32::MAX);
        *self = Self {
            key,
            kind,
            cost_ns,
            left_ns: total_ns.min(MAX_TOTAL_NS) as u32,
            allowed: launches.min(MAX_LAUNCHES) as u8,
            ..Self::default()
        };
    }

    /// Adds a launch with this key. Returns false if it may not take the fast path.
    #[inline]
    pub fn try_launch(&mut self, key: u64, costs: impl FnOnce() -> &'static CostModel) -> bool {
        if self.count >= self.allowed || key != self.key && !self.look_up(key, costs()) || self.cost_ns > self.left_ns {
            return false;
        }
        if let Some(place) = self.kinds.get_mut(usize::from(self.count)) {
            *place = self.kind;
        }
        self.count += 1;
        self.left_ns -= self.cost_ns;
        self.launched_ns += self.cost_ns;
        true
    }

    /// Takes key, kind and cost of another launch. Returns false if its cost is unknown, or if it may wait for other GPUs.
    fn look_up(&mut self, key: u64, costs: &CostModel) -> bool {
        let kind = costs.kind(key);
        match costs.cost_ns(kind) {
            Some(cost_ns) if !costs.is_collective(kind) => {
                (self.key, self.kind, self.cost_ns) = (key, kind, cost_ns);
                true
            }
            _ => false,
        }
    }

    /// Removes the launch that was just added: the driver refused it.
    pub fn undo(&mut self) {
        self.count -= 1;
        self.launched_ns -= self.cost_ns;
    }

    /// Returns the launches made, and their expected GPU time in nanoseconds.
    pub fn launched(&self) -> (&[LaunchKind], u64) {
        (self.kinds.get(..usize::from(self.count)).unwrap_or_default(), self.launched_ns.into())
    }

    /// Ends the fast path: its launches have been added to the batch, and the next launch reads the clock.
    pub fn end(&mut self) {
        (self.allowed, self.count, self.launched_ns) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost_model::key;
    use crate::engine::Engine;
    use crate::sim::gpu::Gpu;
    use crate::sim::process::{MS, Process, S, US, budget};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_bounded_number_of_short_launches_of_known_cost_follows() {
        // SAFETY: an all-zero table is empty and valid.
        let costs: &'static CostModel = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let [short, long, sum, new] = [1, 2, 3, 4].map(|number| key(&[number]));
        for (key, cost_ns) in [(short, 2_000), (long, 30_000), (sum, 2_000)] {
            costs.learn(&[costs.kind(key)], cost_ns);
        }
        costs.set_collective(costs.kind(sum), true);
        let mut path = FastPath::default();
        let follow = |path: &mut FastPath, keys: &[u64]| keys.iter().filter(|&&key| path.try_launch(key, || costs)).count();
        assert_eq!(follow(&mut path, &[0, short]), 0, "no launch has read the clock");
        let like = (costs.kind(short), 2_000);
        path.allow(short, like, 300, u64::MAX);
        assert_eq!(follow(&mut path, &[short; 40]), MAX_LAUNCHES);
        assert_eq!(path.launched(), (&[like.0; MAX_LAUNCHES][..], 30_000));
        path.undo();
        assert_eq!(path.launched(), (&[like.0; MAX_LAUNCHES - 1][..], 28_000));
        path.end();
        assert_eq!((follow(&mut path, &[short]), path.launched()), (0, (&[][..], 0)));
        path.allow(short, like, 3, 1_000_000);
        assert_eq!(
            follow(&mut path, &[short, new, sum, long, long, long, short, short]),
            3,
            "no unknown or collective kind, three at most"
        );
        assert_eq!(path.launched(), (&[costs.kind(short), costs.kind(long), costs.kind(long)][..], 62_000));
        path.allow(long, (costs.kind(long), 30_000), 9, 59_999);
        assert_eq!(follow(&mut path, &[long, long, short]), 2, "the time is bounded too");
    }

    #[test]
    fn a_pause_of_the_program_amid_fast_launches_is_not_charged() {
        for (before, after) in (20..36).map(|before| (before, 1 + before % 9)) {
            let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
            let (stream, start) = (process.stream(0), gpu.now());
            while gpu.now() < start + S {
                (0..before).for_each(|_| process.launch(&gpu, stream, 1, 5 * US));
                gpu.pass(3 * MS);
                (0..after).for_each(|_| process.launch(&gpu, stream, 1, 5 * US));
                process.wait(&gpu, stream, true);
            }
            let (used, charged) = (gpu.used(start, gpu.now()), process.meter.account.budget.used.load(Relaxed));
            assert!(charged.abs_diff(used) < used / 5, "{before} and {after}: charged {charged} of {used}");
        }
    }
}
