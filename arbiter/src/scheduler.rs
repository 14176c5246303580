//! Decides which tenant is next, and for how long. Times are µs unless the name says otherwise.
//!
//! A round of [`ROUND_US`] is divided among the tenants that ask for a turn, in proportion to their limits. The tenant with the least virtual
//! time is next, so turns that were cut short or overran are compensated. Tenants that ask for nothing are not waited for, and with fewer
//! than two active tenants there are no turns.
//!
//! What a tenant says about itself is its own claim. A turn is charged by the host's clock, whether the tenant launches anything in it or not,
//! and priority holds for no more time than the tenant's limit: one that only pretends to work takes its own share and nothing else.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::MAX_SAVED_IN_TURNS_NS;
use vgpu_region::limits::Turn;

use crate::tenant::Tenant;

pub use crate::tenant::DRAIN_TIMEOUT_US;

/// Length of a round of all tenants that take part, in µs: three fill a tenth of a second. What a tenant saves while the others have their
/// turns, plus what it launches ahead in its own, stays below the capacity of its budget.
pub const ROUND_US: u64 = 33_000;
const _: () = assert!(ROUND_US / 4 * 1000 + 8_000_000 < MAX_SAVED_IN_TURNS_NS, "half of a round at half of the GPU, and twice 4 ms");
/// Shortest turn in µs.
const MIN_TURN_US: u64 = 3_000;
/// Lead in virtual time, over a waiting tenant that rarely asks, above which a turn is cut short: 2 ms at a weight of 100%.
const MAX_LEAD: f64 = 20.0;
/// Largest lag in virtual time behind the tenant that has had most: three turns.
const MAX_LAG: f64 = 1_000.0;
/// Time since a tenant was last at work, in µs, up to which it takes part in rounds.
const ACTIVE_WINDOW_US: u64 = 50_000;
/// Time by which the next turn opens before the expected end of the last one's work, in µs. Values from 120 to 400 made no difference to the
/// throughput of two tenants, and shortened the waits of a small one (H200).
const HANDOVER_LEAD_US: u64 = 250;
/// Polling interval while a closed turn drains, in µs.
const DRAIN_POLL_US: u64 = 100;
/// Polling interval during turns, in µs.
const TICK_US: u64 = 1_500;
/// Time from the begin of a turn, in µs, after which a tenant without a launch has nothing to launch.
const START_GRACE_US: u64 = 1_000;
/// Polling interval without turns, in µs.
const IDLE_TICK_US: u64 = 5_000;

/// State of the turns on a GPU. `index` is the tenant's index.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// No turns: all tenants may launch.
    Free,
    /// A turn is open.
    Turn { index: usize, since: u64, until: u64 },
    /// The turn was closed, and its work in flight is waited for.
    Draining { index: usize, since: u64, closed: u64 },
}

/// Scheduler of one GPU.
#[derive(Debug)]
pub struct Scheduler {
    /// Tenants of the GPU.
    pub tenants: Vec<Tenant>,
    stage: Stage,
    heartbeat: u32,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self { tenants: Vec::new(), stage: Stage::Free, heartbeat: 0 }
    }
}

impl Scheduler {
    /// Removes the tenants for which `keep` returns false, adds the `new` ones, and starts over without a turn.
    pub fn replace_tenants(&mut self, keep: impl Fn(&Tenant) -> bool, new: Vec<Tenant>) {
        self.tenants.retain(|tenant| keep(tenant));
        let least = self.tenants.iter().map(|tenant| tenant.virtual_time).fold(f64::INFINITY, f64::min);
        for mut tenant in new {
            tenant.virtual_time = if least.is_finite() { least } else { 0.0 };
            self.tenants.push(tenant);
        }
        self.stage = Stage::Free;
    }

    /// Reads the tenants' reports, decides, and publishes turns. Returns the time until the next call.
    pub fn tick(&mut self, now: u64) -> u64 {
        self.heartbeat = self.heartbeat.wrapping_add(1);
        let before = self.active(now);
        for tenant in &mut self.tenants {
            tenant.turn.beat.store(self.heartbeat, Relaxed);
            tenant.update(now);
        }
        let active = self.active(now);
        // A tenant that was inactive has not saved up virtual time.
        let least = before.iter().map(|&index| self.tenants[index].virtual_time).fold(f64::INFINITY, f64::min);
        for &index in active.iter().filter(|index| !before.contains(index)) {
            let virtual_time = &mut self.tenants[index].virtual_time;
            *virtual_time = if least.is_finite() { virtual_time.max(least) } else { *virtual_time };
        }
        self.lend(&active);
        let stuck = self.tenants.iter().filter(|tenant| tenant.is_stuck).count();
        self.tenants.iter().for_each(|tenant| tenant.set_crowded(stuck > usize::from(tenant.is_stuck)));
        if active.len() < 2 {
            self.free();
            return IDLE_TICK_US;
        }
        match self.stage {
            Stage::Free => {
                self.tenants.iter().filter(|tenant| tenant.weight().is_some()).for_each(|tenant| tenant.set_turn(Turn::CLOSED, 0));
                self.open(now, &active)
            }
            Stage::Turn { index, since, until } => self.continue_turn(now, &active, index, since, until),
            Stage::Draining { index, since, closed } => self.drain(now, &active, index, since, closed),
        }
    }

    /// Returns the length of a turn for each unit of weight, in a round of these tenants.
    fn turn_length(&self, indices: &[usize]) -> f64 {
        let total: u32 = indices.iter().filter_map(|&index| self.tenants[index].weight()).sum();
        ROUND_US as f64 / f64::from(total.max(1))
    }

    fn active(&self, now: u64) -> Vec<usize> {
        let is_active = |tenant: &Tenant| {
            tenant.weight().is_some()
                && !tenant.is_stuck
                && tenant.last_active_us != 0
                && now.saturating_sub(tenant.last_active_us) < ACTIVE_WINDOW_US
        };
        self.tenants.iter().enumerate().filter(|(_, tenant)| is_active(tenant)).map(|(index, _)| index).collect()
    }

    /// Lends the GPU's idle time to a tenant that is alone, up to its soft limit.
    fn lend(&self, active: &[usize]) {
        for (index, tenant) in self.tenants.iter().enumerate() {
            let is_alone = active.iter().all(|&other| other == index);
            tenant.lend(if is_alone { tenant.limit.cores_soft.load(Relaxed).min(100) } else { 0 });
        }
    }

    fn continue_turn(&mut self, now: u64, active: &[usize], index: usize, since: u64, until: u64) -> u64 {
        let Some(tenant) = self.tenants.get(index) else { return self.open(now, active) };
        // A tenant that rarely asks does not wait for the end of a long turn; one that uses up its own turns does.
        let turn = (until - since) as f64 / f64::from(tenant.weight().unwrap_or(1));
        let others = active.iter().map(|&other| &self.tenants[other]).filter(|other| !core::ptr::eq(*other, tenant));
        let waiting = others.filter(|other| other.wants_turn());
        let least = waiting.map(|other| other.virtual_time + if other.has_rested { 0.0 } else { turn }).fold(f64::INFINITY, f64::min);
        let others_wait = least.is_finite();
        let virtual_time = tenant.virtual_time + (now - since) as f64 / f64::from(tenant.weight().unwrap_or(1));
        let is_ahead = others_wait && virtual_time > least + MAX_LEAD && now > since + MIN_TURN_US;
        let until = if is_ahead { now } else { until };
        let is_at_work = tenant.is_busy(now) || now < since + START_GRACE_US;
        if now + HANDOVER_LEAD_US < until && (is_at_work || !others_wait) {
            let tick = if now < since + START_GRACE_US { START_GRACE_US } else { TICK_US };
            return tick.min(until - HANDOVER_LEAD_US - now).max(1);
        }
        if !others_wait {
            // No other tenant waits, so this one continues.
            self.account(index, since, now);
            return self.open(now, &[index]);
        }
        self.tenants[index].end_turn(now);
        self.stage = Stage::Draining { index, since, closed: now };
        self.drain(now, active, index, since, now)
    }

    fn drain(&mut self, now: u64, active: &[usize], index: usize, since: u64, closed: u64) -> u64 {
        if let Some(tenant) = self.tenants.get(index)
            && !tenant.has_drained()
        {
            let left = tenant.busy_until().saturating_sub(now + HANDOVER_LEAD_US);
            // Work that should be over by now is left to the driver: both tenants run for a moment.
            if left > 0 && now < closed + DRAIN_TIMEOUT_US {
                return left.min(DRAIN_POLL_US);
            }
        }
        self.account(index, since, now);
        self.open(now, active)
    }

    fn free(&mut self) {
        self.stage = Stage::Free;
        for tenant in &mut self.tenants {
            tenant.has_rested = true;
            if !tenant.is_stuck {
                tenant.set_turn(Turn::FREE, 0);
            }
        }
    }

    fn account(&mut self, index: usize, since: u64, now: u64) {
        if let Some(tenant) = self.tenants.get_mut(index) {
            tenant.charge_turn(now - since);
        }
    }

    /// Opens the next turn among the active tenants.
    fn open(&mut self, now: u64, active: &[usize]) -> u64 {
        let asking: Vec<usize> =
            active.iter().copied().filter(|&index| self.tenants[index].wants_turn() || self.tenants[index].is_busy(now)).collect();
        // A tenant that was active without asking has not saved up virtual time either.
        let most = active.iter().map(|&index| self.tenants[index].virtual_time).fold(0.0, f64::max);
        for &index in active {
            self.tenants[index].virtual_time = self.tenants[index].virtual_time.max(most - MAX_LAG);
        }
        let order = |&a: &usize, &b: &usize| {
            let (a, b) = (&self.tenants[a], &self.tenants[b]);
            a.rank().cmp(&b.rank()).then(a.virtual_time.total_cmp(&b.virtual_time))
        };
        let Some(next) = asking.iter().copied().min_by(order) else {
            self.free();
            return TICK_US;
        };
        let length = ((self.turn_length(&asking) * f64::from(self.tenants[next].weight().unwrap_or(1))) as u64).max(MIN_TURN_US);
        self.tenants[next].set_turn(Turn::OPEN, length);
        self.stage = Stage::Turn { index: next, since: now, until: now + length };
        TICK_US
    }
}

#[cfg(test)]
mod tests;
