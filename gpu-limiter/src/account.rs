//! The compute account of one GPU in this process: the container's budget, and this process's work in flight.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use vgpu_region::budget::{Budget, Micros, Rate};
use vgpu_region::limits::{GpuLimit, Turn};

use crate::batch::Batch;
use crate::cost_model::CostModel;
use crate::gang_phase::GangPhase;
use crate::off_times::OffTimes;
use crate::power::ClockCompensation;
use crate::tuning::{MAX_SAVED_IN_TURNS_NS, MAX_SAVED_NS, MIN_PAUSE_NS, PERIOD_NS};
use crate::turns::{TurnState, Turns};

/// The account.
#[derive(Debug)]
pub struct Account {
    /// The container's budget.
    pub budget: &'static Budget,
    limit: &'static GpuLimit,
    /// Expected GPU time of this process's closed and unharvested batches, in nanoseconds.
    pub in_flight_ns: AtomicU64,
    /// Number of these batches that have a launch of unknown cost.
    pub(crate) unknown_batches: AtomicU32,
    /// Costs of launches.
    pub(crate) costs: &'static CostModel,
    /// Number of this process in the container, from 1.
    process: u16,
    /// Host time at which this process's lease began, in nanoseconds; 0 without one.
    lease_began_at: AtomicU64,
    /// The process drains its work to end its lease.
    is_yielding: AtomicBool,
    /// The process has ended its lease since [`Account::take_lease_end`] was last called.
    has_ended_lease: AtomicBool,
    /// Share that NVIDIA's MPS enforces for this process, in percent; 0 if it does not.
    mps_percent: u32,
    /// The container's turns.
    pub turns: Turns,
    /// The current gang phase.
    pub(crate) phase: GangPhase,
    /// Factor by which GPU time is charged.
    pub(crate) compensation: ClockCompensation,
    /// When the process's channels were off, or it was frozen.
    pub off_times: &'static OffTimes,
    /// Host time of the last call of [`Account::watch`], in nanoseconds; 0 before the first.
    watched_at: AtomicU64,
}

/// Longest time between two calls of [`Account::watch`] while the process runs, in nanoseconds.
pub const WATCH_NS: u64 = 100_000_000;

/// Whether a launch may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may be made.
    Granted,
    /// The budget is used up for about this many nanoseconds.
    OverBudget(u64),
    /// Another process of the container has the lease.
    LeasedByOther,
    /// Another process of the container has asked for the lease, and comes first.
    YieldToOther,
    /// It is another container's turn, or the arbiter has not looked at this process yet.
    TurnClosed,
}

impl Account {
    /// Returns an account for the container's process with this number, from 1.
    pub fn new(
        budget: &'static Budget,
        limit: &'static GpuLimit,
        costs: &'static CostModel,
        process: u16,
        turns: Turns,
        off_times: &'static OffTimes,
    ) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            budget,
            limit,
            in_flight_ns: zero(),
            unknown_batches: AtomicU32::new(0),
            costs,
            process,
            lease_began_at: zero(),
            is_yielding: AtomicBool::new(false),
            has_ended_lease: AtomicBool::new(false),
            mps_percent: 0,
            turns,
            phase: GangPhase::default(),
            compensation: ClockCompensation::default(),
            off_times,
            watched_at: zero(),
        }
    }

    /// Called by one thread every [`WATCH_NS`]. If the last call was half a second ago, all threads of the process were frozen (by
    /// the freezer, by SIGSTOP), and could launch nothing: that time is not charged.
    pub fn watch(&self, now: u64) {
        if self.is_watch_late(now) {
            self.off_times.add(self.watched_at.load(Relaxed), now);
        }
        self.watched_at.store(now, Relaxed);
    }

    /// Returns true if the process was frozen, and [`Account::watch`] has not been called since. One late wake-up is not taken for it.
    pub(crate) fn is_watch_late(&self, now: u64) -> bool {
        let watched_at = self.watched_at.load(Relaxed);
        watched_at != 0 && now.saturating_sub(watched_at) > 5 * WATCH_NS
    }

    /// Sets the share that NVIDIA's MPS enforces for this process, in percent; 0 if the process is not a client of MPS.
    #[must_use]
    pub fn with_mps(self, percent: u32) -> Self {
        Self { mps_percent: percent, ..self }
    }

    /// Returns the share in force, or `None` without a limit.
    #[inline]
    pub fn rate(&self) -> Option<Rate> {
        Rate::new(self.limit.cores_limit()?.max(self.turns.seen.lent_percent.load(Relaxed)))
    }

    #[cfg(test)]
    pub(crate) fn set_percent(&self, percent: u32) {
        self.limit.cores.store(percent, Relaxed);
    }

    /// Charges GPU time, or refunds it if negative. In nanoseconds.
    pub fn charge(&self, gpu_ns: i64, rate: Rate) {
        self.budget.charge_scaled(gpu_ns, self.compensation.charged_ns(gpu_ns), rate);
    }

    /// Adds a batch that was closed.
    pub(crate) fn add_in_flight(&self, batch: &Batch) {
        let before_ns = self.in_flight_ns.fetch_add(batch.expected_ns, AcqRel);
        self.budget.ahead.store(before_ns + batch.expected_ns, Relaxed);
        self.budget.activity.fetch_add(1, Relaxed);
        self.unknown_batches.fetch_add(u32::from(batch.has_unknown_cost), AcqRel);
    }

    /// Removes a batch that was harvested.
    pub(crate) fn remove_in_flight(&self, batch: &Batch) {
        let before_ns = self.in_flight_ns.fetch_sub(batch.expected_ns, AcqRel);
        self.budget.ahead.store(before_ns.saturating_sub(batch.expected_ns), Relaxed);
        self.unknown_batches.fetch_sub(u32::from(batch.has_unknown_cost), AcqRel);
    }

    /// Decides whether a launch of about `cost_ns` nanoseconds may be made now. The balance after the work in flight has to be above
    /// `min_balance_ns`.
    pub(crate) fn admit(&self, now: u64, cost_ns: u64, min_balance_ns: i64, rate: Rate) -> Admission {
        // MPS enforces the share, or a lower one: the work is accounted only.
        if (1..=rate.percent()).contains(&self.mps_percent) {
            return Admission::Granted;
        }
        let in_flight_ns = self.in_flight_ns.load(Acquire);
        let turn = self.turns.poll(now, in_flight_ns);
        if turn == TurnState::Unseen {
            // This shows the arbiter that a launch waits for it.
            self.budget.activity.fetch_add(1, Relaxed);
            return Admission::TurnClosed;
        }
        if self.turns.is_switched.load(Relaxed) && Turn::state(self.turns.word()) == Turn::CLOSED {
            // The launch need not wait; the arbiter has to know of it.
            self.budget.want.store(u64::from(self.turns.word()), Relaxed);
        }
        if let TurnState::Closed(word) = turn
            && in_flight_ns == 0
        {
            self.budget.drained.store(u64::from(word), Relaxed);
        }
        let max_saved_ns = if self.turns.are_taken() { MAX_SAVED_IN_TURNS_NS } else { MAX_SAVED_NS };
        let balance_ns = self.budget.balance(now, rate, max_saved_ns);
        let free_ns = balance_ns.saturating_sub(self.compensation.charged_ns(in_flight_ns as i64));
        let now_us = Micros::from_ns(now);
        if free_ns <= min_balance_ns {
            if in_flight_ns == 0 {
                self.end_lease(now_us);
                // Another process may need a smaller balance, and would always be the first.
                if self.budget.is_shared(self.process, now_us) {
                    self.budget.request_lease(self.process, now_us);
                }
            }
            return Admission::OverBudget(rate.time_for(min_balance_ns.abs_diff(free_ns)).max(1));
        }
        if let TurnState::Closed(word) = turn {
            self.budget.want.store(u64::from(word), Relaxed);
            return Admission::TurnClosed;
        }
        self.lease(now, in_flight_ns, cost_ns).unwrap_or(Admission::Granted)
    }

    /// Takes or extends the process's lease. Returns why it cannot, or `None` if the process has the lease.
    #[inline(always)]
    fn lease(&self, now: u64, in_flight_ns: u64, cost_ns: u64) -> Option<Admission> {
        let now_us = Micros::from_ns(now);
        if self.budget.is_lease_contended(self.process, now_us) {
            match self.lease_began_at.load(Relaxed) {
                // A process that was refused comes first.
                0 => return Some(Admission::YieldToOther),
                since if now.saturating_sub(since) > PERIOD_NS => self.is_yielding.store(true, Relaxed),
                _ => {}
            }
        }
        if self.is_yielding.load(Relaxed) {
            if in_flight_ns == 0 {
                self.end_lease(now_us);
            }
            return Some(Admission::YieldToOther);
        }
        let until = now_us + Micros::from_ns(in_flight_ns + cost_ns + MIN_PAUSE_NS);
        if !self.budget.acquire_lease(self.process, now_us, until) {
            self.lease_began_at.store(0, Relaxed);
            return Some(Admission::LeasedByOther);
        }
        _ = self.lease_began_at.compare_exchange(0, now, AcqRel, Relaxed);
        None
    }

    fn end_lease(&self, now: Micros) {
        if self.lease_began_at.swap(0, AcqRel) != 0 && self.budget.release_lease(self.process, now) {
            self.has_ended_lease.store(true, Relaxed);
        }
        self.is_yielding.store(false, Relaxed);
    }

    /// Returns true if this process has ended its lease since the last call. Other processes may sleep until it does.
    pub(crate) fn take_lease_end(&self) -> bool {
        self.has_ended_lease.load(Relaxed) && self.has_ended_lease.swap(false, Relaxed)
    }
}
