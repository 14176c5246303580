//! The wait of a launch for admission: for the container's budget, for its turn, and for other processes of the container.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::account::Admission;
use crate::batch_close::close_all;
use crate::engine::{Engine, LaunchWait};
use crate::launch::Launch;
use crate::stream::RING;
use crate::tuning::{FIRST_NAP_NS, MAX_BURST_NS, MIN_PAUSE_NS, PERIOD_NS, ROUND_US};

/// Shortest nap for budget, in nanoseconds; the longest is two periods. A nap costs about 6 µs of CPU time. A change of the limit ends it,
/// except a wait for a turn.
const MIN_NAP_NS: u64 = MIN_PAUSE_NS;
/// Longest nap while something else may end it: another container's turn, another process's lease. In nanoseconds.
const MAX_SHORT_NAP_NS: u64 = 2 * MIN_NAP_NS;
/// Time without any finished work after which one launch is made on credit, in nanoseconds. The work in flight may wait for this launch
/// (kernels that wait for each other, or for the host), and would never end. Longer if the launch would queue behind unfinished work.
const STUCK_AFTER_NS: u64 = 250_000_000;
const STUCK_BEHIND_WORK_AFTER_NS: u64 = 10_000_000_000;

/// State of one wait.
struct Wait {
    /// Balance that is needed, in nanoseconds.
    min_balance_ns: i64,
    /// Next nap for a measurement, in nanoseconds.
    measurement_nap_ns: u64,
    /// The launch has waited for budget.
    for_budget: bool,
    /// The launch has waited for its turn.
    for_turn: bool,
    /// Number of harvested batches when it last changed, and host time of that change.
    last_harvested: (u64, u64),
    /// Work in flight in nanoseconds, and number of leases that ended, when the account was last asked for admission.
    in_flight_ns: u64,
    lease_ends: u32,
}

/// What to do next.
enum Step {
    /// Make the launch.
    Launch,
    /// Ask for admission again.
    Retry,
    /// Take a nap of this many nanoseconds, then ask again; 0 is none.
    Nap(u64),
}

impl Launch<'_> {
    /// Returns by how much the launch may overdraw the budget, in nanoseconds. In turns, the budget that accrues until the turn is over pays
    /// for work that is launched ahead.
    fn credit_ns(&self) -> i64 {
        let turns = &self.meter.account.turns;
        match (turns.are_taken(), turns.is_switched.load(Relaxed)) {
            (false, _) => 0,
            // What accrues in a round of turns: a turn ends in the middle of a kernel, so work launched ahead delays no other tenant. And one more
            // launch, so that the GPU does not idle between two long kernels.
            (true, true) => ROUND_US as i64 * 1_000 / 100 * i64::from(self.rate.percent()) + self.cost_ns as i64,
            (true, false) => MAX_BURST_NS,
        }
    }

    /// Returns the balance that a launch needs that had to wait, in nanoseconds: the budget for one burst.
    fn burst_ns(&self) -> i64 {
        let (turns, percent) = (&self.meter.account.turns, i64::from(self.rate.percent()));
        match (turns.are_taken(), turns.is_switched.load(Relaxed)) {
            (false, _) => (PERIOD_NS as i64 / 100 * percent).min(MAX_BURST_NS),
            (true, true) => -self.credit_ns(),
            (true, false) => 0,
        }
    }

    /// Waits until the launch is admitted. Returns true if it had to wait.
    pub fn wait(&mut self, engine: &impl Engine) -> bool {
        let began_at = self.now;
        let account = self.meter.account;
        let mut wait = Wait {
            min_balance_ns: -self.credit_ns(),
            measurement_nap_ns: FIRST_NAP_NS,
            for_budget: false,
            for_turn: false,
            last_harvested: (self.meter.harvested_batches.load(Relaxed), began_at),
            in_flight_ns: 0,
            lease_ends: 0,
        };
        loop {
            self.meter.harvest(engine, self.rate);
            // The last launch of the same kind may have been measured just now.
            if !self.is_cost_known
                && let Some(cost_ns) = account.costs.cost_ns(self.kind)
            {
                (self.is_cost_known, self.cost_ns) = (true, u64::from(cost_ns));
            }
            let now = engine.now();
            // At each nap: the arbiter has to see that a long wait goes on.
            if wait.for_budget {
                account.budget.waited.fetch_add(now.saturating_sub(self.now), Relaxed);
            }
            self.now = now;
            // Read before the limit: a change in between ends the nap at once.
            let (changes, seen_changes) = account.turns.page.changes();
            // The limit may have been lifted meanwhile.
            let Some(rate) = account.rate() else { break };
            self.rate = rate;
            wait.lease_ends = account.budget.lease_ends.load(Acquire);
            wait.in_flight_ns = account.in_flight_ns.load(Acquire);
            let admission = account.admit(now, self.cost_ns, wait.min_balance_ns, rate);
            if account.take_lease_end() {
                engine.wake(&account.budget.lease_ends);
            }
            let nap_ns = match self.step(engine, &mut wait, admission) {
                Step::Launch => break,
                Step::Retry => continue,
                Step::Nap(nap_ns) => nap_ns,
            };
            if self.is_stuck(&mut wait) {
                self.is_on_credit = true;
                break;
            }
            if nap_ns != 0 {
                engine.sleep_while(changes, seen_changes, nap_ns);
            }
        }
        self.end_wait(engine, &wait, began_at)
    }

    /// Decides what to do after the account's answer.
    #[inline(always)]
    fn step(&mut self, engine: &impl Engine, wait: &mut Wait, admission: Admission) -> Step {
        let account = self.meter.account;
        let has_room = |launch: &Self| launch.stream.closed_batches() < RING - 2;
        match admission {
            Admission::Granted if !self.is_cost_known && account.unknown_batches.load(Acquire) != 0 => {
                self.waited_for_measurement = true;
                wait.measurement_nap_ns = (wait.measurement_nap_ns * 2).min(MIN_NAP_NS);
                Step::Nap(wait.measurement_nap_ns / 2)
            }
            Admission::Granted if has_room(self) => Step::Launch,
            Admission::Granted => Step::Nap(MIN_NAP_NS),
            Admission::LeasedByOther => {
                engine.wait_for_change(&account.budget.lease_ends, wait.lease_ends, MAX_SHORT_NAP_NS);
                Step::Retry
            }
            Admission::YieldToOther => Step::Nap(MIN_NAP_NS / 2),
            Admission::TurnClosed if !wait.for_turn => {
                close_all(engine, self.meter);
                wait.for_turn = true;
                Step::Retry
            }
            Admission::TurnClosed => self.drain(engine, wait),
            Admission::OverBudget(time_ns) => self.wait_for_budget(engine, wait, time_ns),
        }
    }

    /// The budget is used up for about `time_ns` nanoseconds.
    #[inline(always)]
    fn wait_for_budget(&self, engine: &impl Engine, wait: &mut Wait, time_ns: u64) -> Step {
        let account = self.meter.account;
        let is_first = !core::mem::replace(&mut wait.for_budget, true);
        wait.min_balance_ns = self.burst_ns();
        if is_first {
            close_all(engine, self.meter);
            return Step::Retry;
        }
        account.compensation.update(engine, account.budget, &account.turns, self.now);
        // A nap of two periods at most: the limit may rise meanwhile, and work in flight may turn out cheaper than expected.
        let nap_ns = time_ns.clamp(MIN_NAP_NS, 2 * PERIOD_NS);
        match account.turns.turn() {
            Some(turn) if account.turns.are_taken() => {
                engine.wait_for_change(&turn.word, account.turns.word(), nap_ns.min(MAX_SHORT_NAP_NS));
                Step::Nap(0)
            }
            _ => Step::Nap(nap_ns),
        }
    }

    /// The turn is over, or full, or the arbiter has not looked yet: waits for the end of the work in flight, or for the next turn.
    fn drain(&self, engine: &impl Engine, wait: &Wait) -> Step {
        let account = self.meter.account;
        let Some(turn) = account.turns.turn() else { return Step::Retry };
        if wait.in_flight_ns == 0 {
            // The arbiter's first look at the process changes only its heartbeat, if there is nothing to do.
            let nap_ns = if account.turns.are_taken() { PERIOD_NS } else { MAX_SHORT_NAP_NS };
            engine.wait_for_change(&turn.word, account.turns.word(), nap_ns);
            return Step::Retry;
        }
        // The arbiter has to learn at once that it is drained. The end of the last batch was seen late by up to a nap, so less may be left.
        let left_ns = wait.in_flight_ns.saturating_sub(self.now.saturating_sub(self.meter.known_until.load(Relaxed)));
        Step::Nap((left_ns / 2).clamp(FIRST_NAP_NS, MAX_SHORT_NAP_NS))
    }

    /// Returns true if nothing has finished for so long that the work in flight may be waiting for this launch.
    #[inline(always)]
    fn is_stuck(&self, wait: &mut Wait) -> bool {
        let harvested = self.meter.harvested_batches.load(Relaxed);
        if harvested != wait.last_harvested.0 || wait.in_flight_ns == 0 {
            wait.last_harvested = (harvested, self.now);
            return false;
        }
        let limit_ns = if self.stream.closed_batches() == 0 { STUCK_AFTER_NS } else { STUCK_BEHIND_WORK_AFTER_NS };
        self.now.saturating_sub(wait.last_harvested.1) > limit_ns
    }

    /// Accounts for the wait. Returns true if the launch had to wait for budget or its turn.
    #[inline(always)]
    fn end_wait(&self, engine: &impl Engine, wait: &Wait, began_at: u64) -> bool {
        let account = self.meter.account;
        if wait.for_budget {
            account.phase.begin_next(self.now);
        }
        let has_waited = wait.for_budget || wait.for_turn;
        if has_waited {
            engine.on_wait(&LaunchWait {
                for_budget: wait.for_budget,
                for_turn: wait.for_turn,
                stream: self.handle as u64,
                began_ns: began_at,
                ended_ns: self.now,
                cost_ns: self.cost_ns,
                percent: self.rate.percent(),
            });
        }
        has_waited
    }
}
