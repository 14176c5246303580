//! Who is next, and for how long.
//!
//! A turn is as long as the tenant's limit is of all that want one, out of a round of [`ROUND`]. Whoever had
//! the least by its weight is next, so a turn that was cut short or overran is made up for. Tenants that ask for nothing are not
//! waited for; with fewer than two at work there are no turns at all.

use vgpu_region::budget::SAVED_BETWEEN_TURNS;
use vgpu_region::limits::Turn;

pub use crate::tenant::PATIENCE;
use crate::tenant::Tenant;

/// A round of all who take part in it, in µs: three fill a tenth of a second. What one saves up while the others have their turns, and has
/// launched ahead in its own, stays below what its budget holds.
pub const ROUND: u64 = 33_000;
const _: () = assert!(ROUND / 4 * 1000 + 8_000_000 < SAVED_BETWEEN_TURNS, "half of a round at half of the GPU, and twice 4 ms");
/// No turn is shorter, in µs.
const SHORTEST: u64 = 3_000;
/// How far a tenant may be ahead of one that rarely asks, and now waits, before its turn is cut short: what 2 ms are to one with 100%.
const SLACK: f64 = 20.0;
/// How far a tenant can be behind the one that had most, as [`SLACK`] counts: three turns.
const CREDIT: f64 = 1_000.0;
/// Tenants that were at work so recently take part in a round, in µs.
const RECENT: u64 = 50_000;
/// The next tenant is told so long before the last one should be done, in µs. From 120 to 400 that made no difference to what two get done,
/// and a small tenant waited less (H200).
const LEAD: u64 = 250;
/// How often to look whether a turn that is over has drained, in µs.
const POLL: u64 = 100;
/// How often to look while turns are taken, and while they are not, in µs.
const TICK: u64 = 1_500;
/// A tenant that has launched nothing by so long after its turn began has nothing to launch, in µs.
const AWAKE: u64 = 1_000;
const IDLE_TICK: u64 = 5_000;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Everyone launches when it likes.
    Free,
    /// A tenant's turn.
    Turn { who: usize, since: u64, until: u64 },
    /// It is over, and what is still in flight is waited for.
    Draining { who: usize, since: u64, closed: u64 },
}

/// The turns of one GPU.
#[derive(Debug)]
pub struct Scheduler {
    /// The tenants.
    pub tenants: Vec<Tenant>,
    stage: Stage,
    beat: u32,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self { tenants: Vec::new(), stage: Stage::Free, beat: 0 }
    }
}

impl Scheduler {
    /// Adds a tenant, or takes those away for which `keep` is false. Turns begin anew.
    pub fn replace_tenants(&mut self, keep: impl Fn(&Tenant) -> bool, new: Vec<Tenant>) {
        self.tenants.retain(|seat| keep(seat));
        let least = self.tenants.iter().map(|seat| seat.passed).fold(f64::INFINITY, f64::min);
        for mut seat in new {
            seat.passed = if least.is_finite() { least } else { 0.0 };
            self.tenants.push(seat);
        }
        self.stage = Stage::Free;
    }

    /// Looks, decides and tells. `now` in µs. Returns for how long to sleep, in µs.
    pub fn tick(&mut self, now: u64) -> u64 {
        self.beat = self.beat.wrapping_add(1);
        let before = self.active(now);
        for seat in &mut self.tenants {
            seat.turn.beat.store(self.beat, std::sync::atomic::Ordering::Relaxed);
            seat.look(now);
        }
        let active = self.active(now);
        // Who asked for nothing meanwhile has not saved up turns.
        let least = before.iter().map(|&place| self.tenants[place].passed).fold(f64::INFINITY, f64::min);
        for &place in active.iter().filter(|place| !before.contains(place)) {
            let passed = &mut self.tenants[place].passed;
            *passed = if least.is_finite() { passed.max(least) } else { *passed };
        }
        self.lend(&active);
        let stuck = self.tenants.iter().filter(|seat| seat.stuck).count();
        self.tenants.iter().for_each(|seat| seat.crowd(stuck > usize::from(seat.stuck)));
        if active.len() < 2 {
            self.free();
            return IDLE_TICK;
        }
        match self.stage {
            Stage::Free => {
                self.tenants.iter().filter(|seat| seat.weight().is_some()).for_each(|seat| seat.tell(Turn::CLOSED, 0));
                self.open(now, &active)
            }
            Stage::Turn { who, since, until } => self.during(now, &active, who, since, until),
            Stage::Draining { who, since, closed } => self.drain(now, &active, who, since, closed),
        }
    }

    /// A turn of each of these, by its weight.
    fn turn_of(&self, places: &[usize]) -> f64 {
        let total: u32 = places.iter().filter_map(|&place| self.tenants[place].weight()).sum();
        ROUND as f64 / f64::from(total.max(1))
    }

    fn active(&self, now: u64) -> Vec<usize> {
        let recent =
            |seat: &Tenant| seat.weight().is_some() && !seat.stuck && seat.last_seen != 0 && now.saturating_sub(seat.last_seen) < RECENT;
        self.tenants.iter().enumerate().filter(|(_, seat)| recent(seat)).map(|(place, _)| place).collect()
    }

    /// Lends to whoever is alone and has a soft limit.
    fn lend(&self, active: &[usize]) {
        for (place, seat) in self.tenants.iter().enumerate() {
            let alone = active.iter().all(|&other| other == place);
            seat.lend(if alone { seat.limit.cores_soft.load(std::sync::atomic::Ordering::Relaxed).min(100) } else { 0 });
        }
    }

    fn during(&mut self, now: u64, active: &[usize], who: usize, since: u64, until: u64) -> u64 {
        let Some(seat) = self.tenants.get(who) else { return self.open(now, active) };
        // Who rarely asks does not wait for the end of a long turn; who uses up its own turns does.
        let turn = (until - since) as f64 / f64::from(seat.weight().unwrap_or(1));
        let waiting = active.iter().map(|&other| &self.tenants[other]).filter(|other| !core::ptr::eq(*other, seat) && other.wants());
        let least = waiting.map(|other| other.passed + if other.rests { 0.0 } else { turn }).fold(f64::INFINITY, f64::min);
        let others_want = least.is_finite();
        let had = seat.passed + (now - since) as f64 / f64::from(seat.weight().unwrap_or(1));
        let until = if others_want && had > least + SLACK && now > since + SHORTEST { now } else { until };
        let at_work = seat.is_busy(now) || now < since + AWAKE;
        if now + LEAD < until && (at_work || !others_want) {
            let tick = if now < since + AWAKE { AWAKE } else { TICK };
            return tick.min(until - LEAD - now).max(1);
        }
        if !others_want {
            // Nobody is kept waiting: it goes on.
            self.account(who, since, now);
            return self.open(now, &[who]);
        }
        self.tenants[who].end_turn(now);
        self.stage = Stage::Draining { who, since, closed: now };
        self.drain(now, active, who, since, now)
    }

    fn drain(&mut self, now: u64, active: &[usize], who: usize, since: u64, closed: u64) -> u64 {
        if let Some(seat) = self.tenants.get(who)
            && !seat.has_drained()
        {
            let left = seat.busy_until().saturating_sub(now + LEAD);
            // What should be over by now is left to the driver: both run for a moment.
            if left > 0 && now < closed + PATIENCE {
                return left.min(POLL);
            }
        }
        self.account(who, since, now);
        self.open(now, active)
    }

    fn free(&mut self) {
        self.stage = Stage::Free;
        for seat in &mut self.tenants {
            seat.rests = true;
            if !seat.stuck {
                seat.tell(Turn::FREE, 0);
            }
        }
    }

    fn account(&mut self, who: usize, since: u64, now: u64) {
        if let Some(seat) = self.tenants.get_mut(who) {
            seat.passed += (now - since) as f64 / f64::from(seat.weight().unwrap_or(1));
        }
    }

    /// Opens the next turn among those at work.
    fn open(&mut self, now: u64, active: &[usize]) -> u64 {
        let asking: Vec<usize> =
            active.iter().copied().filter(|&place| self.tenants[place].wants() || self.tenants[place].is_busy(now)).collect();
        // Nor has who told that it was at work and asked for nothing.
        let most = active.iter().map(|&place| self.tenants[place].passed).fold(0.0, f64::max);
        for &place in active {
            self.tenants[place].passed = self.tenants[place].passed.max(most - CREDIT);
        }
        let order = |&a: &usize, &b: &usize| {
            let (a, b) = (&self.tenants[a], &self.tenants[b]);
            a.priority.cmp(&b.priority).then(a.passed.total_cmp(&b.passed))
        };
        let Some(next) = asking.iter().copied().min_by(order) else {
            self.free();
            return TICK;
        };
        let length = ((self.turn_of(&asking) * f64::from(self.tenants[next].weight().unwrap_or(1))) as u64).max(SHORTEST);
        self.tenants[next].tell(Turn::OPEN, length);
        self.stage = Stage::Turn { who: next, since: now, until: now + length };
        TICK
    }
}

#[cfg(test)]
mod tests;
