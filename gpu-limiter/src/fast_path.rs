//! Launches that are made without asking what time it is, and entered into the stream's batch later, all at once: the few that follow one
//! that did ask, if they are short.
//!
//! A pause before one of them is found out by the next launch that asks, or where the batch ends ([`super::ends::has_paused`]).

use crate::cost_model::{Costs, Kind};
use crate::tuning::GAP;

/// So many launches are made without asking at most.
const MOST: usize = 15;
/// And no more than are expected to take so many nanoseconds together: that much shorter than it was may a pause before them look.
const NANOS: u64 = GAP / 8;

/// What may be launched without asking, and what was. All zero is nothing.
#[derive(Debug, Default)]
pub struct Quick {
    /// The last launch's key, its kind, and what that is expected to take in nanoseconds.
    key: u64,
    cost: u32,
    /// Nanoseconds that the next ones may take.
    left: u32,
    /// Nanoseconds that those that were launched are expected to take.
    nanos: u32,
    kind: Kind,
    /// How many launches there may be, and were.
    room: u8,
    count: u8,
    kinds: [Kind; MOST],
}

impl Quick {
    /// Lets launches follow this one: no more than so many, nor expected to take more than so many nanoseconds.
    pub fn grant(&mut self, key: u64, (kind, cost): (Kind, u64), launches: usize, nanos: u64) {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        *self = Self { key, kind, cost, left: nanos.min(NANOS) as u32, room: launches.min(MOST) as u8, ..Self::default() };
    }

    /// Enters a launch with this key, if it may be made like this.
    #[inline]
    pub fn takes(&mut self, key: u64, costs: impl FnOnce() -> &'static Costs) -> bool {
        if self.count >= self.room || key != self.key && !self.knows(key, costs()) || self.cost > self.left {
            return false;
        }
        if let Some(place) = self.kinds.get_mut(usize::from(self.count)) {
            *place = self.kind;
        }
        self.count += 1;
        self.left -= self.cost;
        self.nanos += self.cost;
        true
    }

    /// Whether what such a launch takes is known, and that it waits for nobody.
    fn knows(&mut self, key: u64, costs: &Costs) -> bool {
        let kind = costs.kind(key);
        match costs.of(kind) {
            Some(cost) if !costs.is_collective(kind) => {
                (self.key, self.kind, self.cost) = (key, kind, cost);
                true
            }
            _ => false,
        }
    }

    /// The driver refused the launch that was just entered.
    pub fn refused(&mut self) {
        self.count -= 1;
        self.nanos -= self.cost;
    }

    /// What was launched, and how many nanoseconds that is expected to take.
    pub fn launched(&self) -> (&[Kind], u64) {
        (self.kinds.get(..usize::from(self.count)).unwrap_or_default(), self.nanos.into())
    }

    /// It has been entered into the batch; the next launch asks.
    pub fn end(&mut self) {
        (self.room, self.count, self.nanos) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use crate::cost_model::Costs;
    use crate::cost_model::key;
    use crate::engine::Engine;
    use crate::sim::gpu::Gpu;
    use crate::sim::limits::MS;
    use crate::sim::limits::Process;
    use crate::sim::limits::S;
    use crate::sim::limits::US;
    use crate::sim::limits::budget;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn so_many_short_launches_whose_cost_is_known_follow() {
        // SAFETY: all zero is an empty table.
        let costs: &'static Costs = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let [short, long, sum, new] = [1, 2, 3, 4].map(|number| key(&[number]));
        for (key, nanos) in [(short, 2_000), (long, 30_000), (sum, 2_000)] {
            costs.learn(&[costs.kind(key)], nanos);
        }
        costs.set_collective(costs.kind(sum), true);
        let mut quick = Quick::default();
        let follow = |quick: &mut Quick, keys: &[u64]| keys.iter().filter(|&&key| quick.takes(key, || costs)).count();
        assert_eq!(follow(&mut quick, &[0, short]), 0, "nobody has asked");
        let like = (costs.kind(short), 2_000);
        quick.grant(short, like, 300, u64::MAX);
        assert_eq!(follow(&mut quick, &[short; 40]), MOST);
        assert_eq!(quick.launched(), (&[like.0; MOST][..], 30_000));
        quick.refused();
        assert_eq!(quick.launched(), (&[like.0; MOST - 1][..], 28_000));
        quick.end();
        assert_eq!((follow(&mut quick, &[short]), quick.launched()), (0, (&[][..], 0)));
        quick.grant(short, like, 3, 1_000_000);
        assert_eq!(follow(&mut quick, &[short, new, sum, long, long, long, short, short]), 3, "no others, nor more than there is room for");
        assert_eq!(quick.launched(), (&[costs.kind(short), costs.kind(long), costs.kind(long)][..], 62_000));
        quick.grant(long, (costs.kind(long), 30_000), 9, 59_999);
        assert_eq!(follow(&mut quick, &[long, long, short]), 2, "nor than there is time for");
    }

    /// The launches before and after a pause that the program makes amid those that do not ask: it is nobody's.
    #[test]
    fn a_pause_before_launches_that_do_not_ask_is_not_paid_for() {
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
