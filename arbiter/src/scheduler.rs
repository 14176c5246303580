//! Decides which tenant is next, and for how long. Times are µs unless the name says otherwise.
//!
//! ```text
//!  works now and then ──► never waits for a turn; the busy ones have slices of 100 µs
//!  always busy, alone ──► no turns
//!  always busy, two or more ──► turns in the ratio of their limits: channels off outside them
//! ```
//!
//! A round of [`ROUND_US`] is divided among the busy tenants that have work, in proportion to their limits. The tenant with the least virtual
//! time is next, so turns that were cut short or overran are compensated. Tenants that have nothing to do are not waited for.
//!
//! A tenant's channels are switched off when its turn ends, in the middle of a kernel, by its own processes. Where they cannot do that, the
//! processes hold launches back, and a turn ends when the work in flight has finished.
//!
//! What a tenant says about itself is its own claim. A turn is charged by the host's clock, whether the tenant launches anything in it or not.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_gpu_limiter::tuning::{MIN_TURN_US, ROUND_US, SHORT_SLICE_US, SWITCH_US};
use vgpu_region::limits::Turn;

use crate::tenant::{DRAIN_TIMEOUT_US, Tenant};

/// Part of its limit, as a divisor, that a tenant may use beyond it while turns divide the whole GPU, and at least a percentage point: the
/// turns' lengths are exact, and a budget that is off by a hundredth would cut them short.
const LENT_DIVISOR: u32 = 10;
/// Polling interval during turns, in µs.
const TICK_US: u64 = 1_500;
/// Polling interval without turns, and period of the samples that tell tenants that are always busy from those that work now and then, in µs.
const SAMPLE_US: u64 = 10_000;
/// Polling interval while a closed turn drains, in µs.
const DRAIN_POLL_US: u64 = 100;
/// Time since a tenant that works now and then was last at work, up to which busy ones keep short slices, in µs.
const INTERACTIVE_WINDOW_US: u64 = 10_000_000;

/// A turn: the tenant's index, and its begin and end in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Open {
    index: usize,
    since: u64,
    until: u64,
}

/// State of the turns on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Stage {
    /// No turns: all tenants may launch.
    #[default]
    Free,
    /// A turn is open.
    Turn(Open),
    /// The next turn is open, and the last one closes at `close_at`.
    Overlap { last: Open, next: Open, close_at: u64 },
    /// The turn was closed, and its work in flight is waited for.
    Draining { last: Open, closed: u64 },
}

/// Scheduler of one GPU.
#[derive(Debug, Default)]
pub struct Scheduler {
    /// Tenants of the GPU.
    pub tenants: Vec<Tenant>,
    stage: Stage,
    heartbeat: u32,
    sampled_at: u64,
    /// Highest virtual time at which a turn has begun. A tenant that has no work, or takes no turns, is raised to it: it saves up no time.
    virtual_time: f64,
}

impl Scheduler {
    /// Removes the tenants for which `keep` returns false, adds the `new` ones, and starts over without a turn.
    pub fn replace_tenants(&mut self, keep: impl Fn(&Tenant) -> bool, new: Vec<Tenant>) {
        self.tenants.retain(|tenant| keep(tenant));
        self.tenants.extend(new);
        self.stage = Stage::Free;
    }

    /// Reads the tenants' reports, decides, and publishes turns. Returns the time until the next call.
    pub fn tick(&mut self, now: u64) -> u64 {
        // An arbiter that has just begun, or was stopped, knows nothing of the time before.
        let passed_us = now.saturating_sub(self.sampled_at).min(2 * SAMPLE_US);
        let is_sampled = self.observe(now);
        self.find_takers();
        // Not more often: each write to a page that a tenant's processes read costs as much as a read of its report.
        if is_sampled {
            self.publish(now, passed_us);
        }
        if self.takers().count() < 2 {
            self.free(now);
            return SAMPLE_US;
        }
        // Without work nothing is switched: each change costs a process a millisecond.
        let is_work = self.takers().any(|(_, tenant)| tenant.has_work(now));
        let holders = self.holders();
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            match (tenant.takes_turns, tenant.turn_state()) {
                (true, Turn::FREE) if is_work => tenant.set_turn(Turn::CLOSED, 0, now),
                // It was stuck in its turn, and others have had theirs since.
                (true, Turn::OPEN) if !holders.contains(&index) => tenant.set_turn(Turn::CLOSED, 0, now),
                (false, Turn::OPEN | Turn::CLOSED) if !tenant.is_stuck => tenant.set_turn(Turn::FREE, 0, now),
                _ => {}
            }
        }
        match self.stage {
            Stage::Turn(open) if self.takes_turns(open.index) => self.continue_turn(now, open),
            Stage::Overlap { last, next, close_at } if self.takes_turns(next.index) => self.end_overlap(now, last, next, close_at),
            Stage::Draining { last, closed } => self.drain(now, last, closed),
            Stage::Free => self.open_next(now),
            // The tenant with the turn takes part no more. In an overlap the last one's turn is still open, too.
            Stage::Turn(_) | Stage::Overlap { .. } => {
                self.tenants.iter_mut().filter(|tenant| tenant.takes_turns).for_each(|tenant| tenant.set_turn(Turn::CLOSED, 0, now));
                self.open_next(now)
            }
        }
    }

    /// Reads the reports: of all tenants when a sample is due, else of those that have, or had, the turn, and of those whose channels are
    /// being switched. Returns whether one was due.
    fn observe(&mut self, now: u64) -> bool {
        let is_sampled = now >= self.sampled_at + SAMPLE_US;
        if is_sampled {
            self.sampled_at = now;
            self.heartbeat = self.heartbeat.wrapping_add(1);
        }
        let holders = self.holders();
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            if is_sampled || holders.contains(&index) || tenant.is_switching(now) {
                tenant.update(now);
            }
            if is_sampled {
                tenant.turn.beat.store(self.heartbeat, Relaxed);
                tenant.sample(now);
            }
        }
        is_sampled
    }

    /// Returns the indices of the tenants whose turn is open or just ended; `usize::MAX` where there is none.
    fn holders(&self) -> [usize; 2] {
        match self.stage {
            Stage::Free => [usize::MAX; 2],
            Stage::Turn(open) | Stage::Draining { last: open, .. } => [open.index, usize::MAX],
            Stage::Overlap { last, next, .. } => [last.index, next.index],
        }
    }

    /// Finds the tenants that take turns: those that are always busy, be it with waiting for budget.
    fn find_takers(&mut self) {
        for tenant in &mut self.tenants {
            let takes_turns = tenant.weight().is_some() && !tenant.is_stuck && !tenant.is_interactive;
            if takes_turns && !tenant.takes_turns {
                // It has not saved up time while it took none.
                tenant.virtual_time = tenant.virtual_time.max(self.virtual_time);
            }
            tenant.takes_turns = takes_turns;
        }
    }

    /// Returns the tenants that take turns, with their indices.
    fn takers(&self) -> impl Iterator<Item = (usize, &Tenant)> {
        self.tenants.iter().enumerate().filter(|(_, tenant)| tenant.takes_turns)
    }

    /// Returns whether the tenant at `index` takes turns.
    fn takes_turns(&self, index: usize) -> bool {
        self.tenants.get(index).is_some_and(|tenant| tenant.takes_turns)
    }

    /// Returns the sum of the limits of all tenants that take turns, in percent; at least 1.
    fn total_weight(&self) -> u32 {
        self.takers().filter_map(|(_, tenant)| tenant.weight()).sum::<u32>().max(1)
    }

    /// Publishes, with each sample, the shares that are lent, the slices, and the time that tenants lost to others' slices. The last sample
    /// was taken `passed_us` ago.
    fn publish(&self, now: u64, passed_us: u64) {
        let stuck = self.tenants.iter().filter(|tenant| tenant.is_stuck).count();
        let is_at_will = |tenant: &Tenant| tenant.is_interactive && !tenant.is_stuck && tenant.runs_at_will(now);
        let at_will = self.tenants.iter().filter(|tenant| is_at_will(tenant)).count();
        let is_unlimited = |tenant: &Tenant| tenant.weight().is_none();
        let works_now_and_then = |tenant: &Tenant| {
            tenant.is_interactive && tenant.last_active_us != 0 && now.saturating_sub(tenant.last_active_us) < INTERACTIVE_WINDOW_US
        };
        // A tenant without a limit reports nothing, so it may be busy. Beside a busy one with the driver's slices, short slices would cost
        // the others nearly all of their share.
        let has_interactive = self.tenants.iter().any(works_now_and_then) && !self.tenants.iter().any(is_unlimited);
        let active = self.tenants.iter().filter(|tenant| tenant.is_active(now)).count();
        let is_divided = self.takers().count() > 1 && self.total_weight() >= 100 - 100 / LENT_DIVISOR;
        for tenant in &self.tenants {
            let other_stuck = stuck - usize::from(tenant.is_stuck);
            // Those that work now and then lose time to each other, as dozens may begin at once, and a busy one to all of them. Its own slices
            // are short beside theirs.
            let others = other_stuck + at_will - usize::from(is_at_will(tenant));
            if tenant.is_on_gpu(now) {
                tenant.turn.lost_us.fetch_add((passed_us * others as u64 / (others as u64 + 1)) as u32, Relaxed);
            }
            tenant.set_slice(match () {
                () if tenant.is_interactive => 0,
                // With the driver's slice of 2 ms, one that does not react gets a tenth of the GPU beside this one (computed).
                () if other_stuck > 0 => 2 * MIN_TURN_US as u32,
                () if has_interactive => SHORT_SLICE_US,
                () => 0,
            });
            let is_alone = active == usize::from(tenant.is_active(now));
            let soft = if is_alone { tenant.limit.cores_soft.load(Relaxed).min(100) } else { 0 };
            let limit = tenant.weight().unwrap_or(0);
            let in_turns = if is_divided && tenant.takes_turns { limit + (limit / LENT_DIVISOR).max(1) } else { 0 };
            tenant.turn.lent.store(soft.max(in_turns), Relaxed);
        }
    }

    /// Continues the open turn, or hands the GPU over.
    fn continue_turn(&mut self, now: u64, open: Open) -> u64 {
        let tenant = &self.tenants[open.index];
        let virtual_time = tenant.virtual_time + (now - open.since) as f64 / f64::from(tenant.weight().unwrap_or(1));
        let next = self.next(now, Some(open.index));
        // A tenant that is behind, because it rested in its own turns, does not wait for the end of a long one.
        let bound = ROUND_US as f64 / f64::from(self.total_weight());
        let is_ahead = next.is_some_and(|next| virtual_time - self.tenants[next].virtual_time > bound) && now >= open.since + MIN_TURN_US;
        let is_at_work = tenant.is_at_work(now) || now < open.since + 2 * TICK_US;
        if now < open.until && is_at_work && !is_ahead {
            return TICK_US.min(open.until - now).max(1);
        }
        let Some(next) = next else {
            // No other tenant has work, so this one continues.
            self.charge(open, now);
            return self.begin(now, open.index);
        };
        // One whose channels are not on yet has shown nothing.
        if tenant.has_applied() || !tenant.is_switched() {
            self.tenants[open.index].uses_turns = is_at_work;
        }
        if self.tenants[open.index].is_switched() && self.tenants[next].is_switched() {
            self.begin(now, next);
            let Stage::Turn(next) = self.stage else { return TICK_US };
            self.stage = Stage::Overlap { last: open, next, close_at: now + SWITCH_US };
            return SWITCH_US;
        }
        self.tenants[open.index].set_turn(Turn::CLOSED, 0, now);
        self.stage = Stage::Draining { last: open, closed: now };
        self.drain(now, open, now)
    }

    /// Closes the last turn, once the next tenant's channels should be on.
    fn end_overlap(&mut self, now: u64, last: Open, next: Open, close_at: u64) -> u64 {
        if now < close_at {
            return close_at - now;
        }
        if last.index != next.index
            && let Some(tenant) = self.tenants.get_mut(last.index)
        {
            tenant.set_turn(Turn::CLOSED, 0, now);
        }
        self.charge(last, now);
        let next = Open { since: now, until: next.until.max(now + 1), ..next };
        self.stage = Stage::Turn(next);
        TICK_US
    }

    /// Waits until the last turn's work has finished, then opens the next.
    fn drain(&mut self, now: u64, last: Open, closed: u64) -> u64 {
        if let Some(tenant) = self.tenants.get(last.index)
            && !tenant.has_applied()
        {
            // Switching off takes a millisecond, and work that should be over by then is left to the GPU's scheduler: both run for a moment.
            let left = if tenant.is_switched() { 1 } else { tenant.busy_until().saturating_sub(now + SWITCH_US / 2) };
            if left > 0 && now < closed + DRAIN_TIMEOUT_US {
                return left.clamp(DRAIN_POLL_US / 2, DRAIN_POLL_US);
            }
        }
        self.charge(last, now);
        self.open_next(now)
    }

    fn free(&mut self, now: u64) {
        self.stage = Stage::Free;
        for tenant in self.tenants.iter_mut().filter(|tenant| !tenant.is_stuck) {
            tenant.set_turn(Turn::FREE, 0, now);
        }
    }

    fn charge(&mut self, turn: Open, now: u64) {
        if let Some(tenant) = self.tenants.get_mut(turn.index) {
            tenant.charge_turn(now.saturating_sub(turn.since));
        }
    }

    /// Returns the tenant with work that has the least virtual time, without the one at `except`.
    fn next(&self, now: u64, except: Option<usize>) -> Option<usize> {
        let others = self.takers().filter(|(index, tenant)| Some(*index) != except && tenant.has_work(now));
        others.min_by(|(_, a), (_, b)| a.virtual_time.total_cmp(&b.virtual_time)).map(|(index, _)| index)
    }

    /// Opens the next turn.
    fn open_next(&mut self, now: u64) -> u64 {
        match self.next(now, None) {
            Some(next) => self.begin(now, next),
            None => {
                self.free(now);
                TICK_US
            }
        }
    }

    /// Opens a tenant's turn.
    fn begin(&mut self, now: u64, index: usize) -> u64 {
        let with_work = self.takers().filter(|(other, tenant)| *other == index || tenant.has_work(now));
        let total = with_work.filter_map(|(_, tenant)| tenant.weight()).sum::<u32>().max(1);
        let part = f64::from(self.tenants[index].weight().unwrap_or(1)) / f64::from(total);
        let length = ((ROUND_US as f64 * part) as u64).max(MIN_TURN_US);
        self.tenants[index].set_turn(Turn::OPEN, length, now);
        self.virtual_time = self.virtual_time.max(self.tenants[index].virtual_time);
        // A tenant that takes part without work has not saved up time either.
        let is_idle = |tenant: &Tenant| tenant.turn_state() == Turn::CLOSED && !tenant.has_work(now);
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.takes_turns && is_idle(tenant)) {
            tenant.virtual_time = tenant.virtual_time.max(self.virtual_time);
        }
        self.stage = Stage::Turn(Open { index, since: now, until: now + length });
        TICK_US
    }
}

#[cfg(test)]
mod switched_tests;
#[cfg(test)]
mod tests;
