//! One GPU's compute account in this process: the container's budget, and what this process has in flight.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use vgpu_region::budget::{Budget, LATELY, Rate, SAVED, SAVED_BETWEEN_TURNS};
use vgpu_region::limits::GpuLimit;

use crate::cost_model::Costs;
use crate::gang_phase::Rounds;
use crate::power::Worth;
use crate::stream::Batch;
use crate::turns::{Gate, Pass};

/// A process lets the others of its container run after so many nanoseconds, if they want to.
const OWN_TURN: u64 = 10_000_000;
/// How long a turn outlasts the expected end of what is in flight, in microseconds.
const TURN_SLACK: u64 = 500;
/// More budget than this is much, in nanoseconds.
const SPARE: i64 = SAVED as i64 / 4 * 3;
/// No more nanoseconds are in flight beside other streams' work.
const BESIDE: u64 = 3_000_000;

/// The account.
#[derive(Debug)]
pub struct Account {
    /// The container's budget.
    pub budget: &'static Budget,
    limit: &'static GpuLimit,
    /// What this process's closed and unharvested batches are expected to take, in nanoseconds.
    pub in_flight: AtomicU64,
    /// How many of these batches hold a launch of unknown cost.
    unknown: AtomicU32,
    /// What launches are known to cost.
    pub costs: &'static Costs,
    /// This process in the container, from 1.
    who: u16,
    holding_since: AtomicU64,
    leaving: AtomicBool,
    handed: AtomicBool,
    /// Threads that wait for budget.
    pub waiting: AtomicU32,
    /// What NVIDIA's MPS holds this process to, in percent; 0 if it does not.
    mps_percent: u32,
    /// The container's turns.
    pub gate: Gate,
    /// How far each stream has come since launches were last held back.
    pub rounds: Rounds,
    /// When the last of what is in flight is expected to end, by the host's clock.
    ends: AtomicU64,
    /// What is in flight of what goes on beside other streams, in nanoseconds expected.
    beside: AtomicU64,
    /// What the GPU's time counts for.
    pub worth: Worth,
    /// Until when other processes that were seen to use the budget may come again.
    shared_until: AtomicU64,
}

/// Whether a launch may go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Go,
    /// It may, and there is much more budget than that.
    Spare,
    /// Not before about this many nanoseconds have passed.
    Wait(u64),
    /// Another process of the container has the GPU.
    Other,
    /// Another process of the container shall have it now.
    Yield,
    /// It is another container's turn.
    Closed,
}

impl Account {
    /// An account for the process `who`, from 1.
    pub fn new(budget: &'static Budget, limit: &'static GpuLimit, costs: &'static Costs, who: u16, gate: Gate) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            budget,
            limit,
            in_flight: zero(),
            unknown: AtomicU32::new(0),
            costs,
            who,
            holding_since: zero(),
            leaving: AtomicBool::new(false),
            handed: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            mps_percent: 0,
            gate,
            rounds: Rounds::default(),
            ends: zero(),
            beside: zero(),
            worth: Worth::new(),
            shared_until: zero(),
        }
    }

    /// The same for a process that is a client of NVIDIA's MPS, which holds it to so many percent; 0 if it is none.
    #[must_use]
    pub fn with_mps(self, percent: u32) -> Self {
        Self { mps_percent: percent, ..self }
    }

    /// The share that is in force now; `None` without a limit.
    #[inline]
    pub fn rate(&self) -> Option<Rate> {
        Rate::new(self.limit.cores_limit()?.max(self.gate.lent()))
    }

    #[cfg(test)]
    pub fn set_percent(&self, percent: u32) {
        self.limit.cores.store(percent, Relaxed);
    }

    /// Takes GPU time that was used, or gives back (negative) what was charged too early. Nanoseconds.
    pub fn charge(&self, gpu: i64, rate: Rate) {
        self.budget.charge_as(gpu, self.worth.of(gpu), rate);
    }

    /// A batch has been closed, whose stream is expected to be idle from then on.
    pub fn departed(&self, batch: &Batch, idle_from: u64) {
        match batch.covered {
            // What goes on beside others is nothing that others go on beside: there would be no end of it.
            true => _ = self.beside.fetch_add(batch.expected, AcqRel),
            false => _ = self.ends.fetch_max(idle_from, AcqRel),
        }
        let before = self.in_flight.fetch_add(batch.expected, AcqRel);
        self.budget.ahead.store(before + batch.expected, Relaxed);
        self.budget.activity.fetch_add(1, Relaxed);
        self.unknown.fetch_add(u32::from(batch.unknown), AcqRel);
    }

    /// A batch has been harvested.
    pub fn arrived(&self, batch: &Batch) {
        let before = self.in_flight.fetch_sub(batch.expected, AcqRel);
        self.budget.ahead.store(before.saturating_sub(batch.expected), Relaxed);
        if before <= batch.expected {
            self.ends.store(0, Relaxed);
        }
        if batch.covered {
            self.beside.fetch_sub(batch.expected, AcqRel);
        }
        self.unknown.fetch_sub(u32::from(batch.unknown), AcqRel);
    }

    /// Whether so much is in flight beside others that it is not known yet whether it does run beside them.
    pub fn is_beside_enough(&self) -> bool {
        self.beside.load(Acquire) > BESIDE
    }

    /// Whether what ends at `end` is over before what is in flight in another stream: beside that it takes no time of its own. Where it does,
    /// since both cannot run at once, it is paid for afterwards. Other processes and containers have nothing of that, and go first.
    pub fn covers(&self, end: u64) -> bool {
        end <= self.ends.load(Acquire) && !self.is_beside_enough() && !self.gate.takes_turns() && !self.leaving.load(Relaxed)
    }

    /// Whether something is in flight whose cost is not known.
    pub fn is_in_the_dark(&self) -> bool {
        self.unknown.load(Acquire) != 0
    }

    /// Whether a launch of about `cost` nanoseconds may go ahead now, with more than `least` nanoseconds of budget left.
    pub fn verdict(&self, now: u64, cost: u64, least: i64, rate: Rate) -> Verdict {
        // It is held to its share already, or less: here it is only accounted.
        if (1..=rate.percent()).contains(&self.mps_percent) {
            return Verdict::Go;
        }
        let in_flight = self.in_flight.load(Acquire);
        let pass = self.gate.pass(now, in_flight);
        if let Pass::Closed(word) = pass
            && in_flight == 0
        {
            self.budget.drained.store(u64::from(word), Relaxed);
        }
        let saved = if self.gate.takes_turns() { SAVED_BETWEEN_TURNS } else { SAVED };
        let room = self.budget.balance_up_to(saved, now, rate).saturating_sub(self.worth.of(in_flight as i64));
        let micros = now / 1000;
        if room <= least {
            if in_flight == 0 {
                self.let_go(micros);
                // Another process may be content with less, and would always be the first.
                if self.budget.is_shared(self.who, micros) {
                    self.budget.ask(self.who, micros);
                }
            }
            return Verdict::Wait(rate.time_for(least.abs_diff(room)).max(1));
        }
        if let Pass::Closed(word) = pass {
            self.budget.want.store(u64::from(word), Relaxed);
            return Verdict::Closed;
        }
        if self.budget.is_contended(self.who, micros) {
            match self.holding_since.load(Relaxed) {
                // Whoever was refused goes first.
                0 => return Verdict::Yield,
                since if now.saturating_sub(since) > OWN_TURN => self.leaving.store(true, Relaxed),
                _ => {}
            }
        }
        if self.leaving.load(Relaxed) {
            if in_flight == 0 {
                self.let_go(micros);
            }
            return Verdict::Yield;
        }
        if !self.budget.hold(self.who, micros, micros + (in_flight + cost) / 1000 + TURN_SLACK) {
            self.holding_since.store(0, Relaxed);
            return Verdict::Other;
        }
        _ = self.holding_since.compare_exchange(0, now, AcqRel, Relaxed);
        if room > SPARE { Verdict::Spare } else { Verdict::Go }
    }

    fn let_go(&self, micros: u64) {
        if self.holding_since.swap(0, AcqRel) != 0 && self.budget.let_go(self.who, micros) {
            self.handed.store(true, Relaxed);
        }
        self.leaving.store(false, Relaxed);
    }

    /// Whether other processes of the container use the budget, too.
    pub fn is_shared(&self, now: u64) -> bool {
        let shared = self.budget.is_shared(self.who, now / 1000);
        if shared {
            self.shared_until.store(now + LATELY * 1000, Relaxed);
        }
        shared
    }

    /// The same, though the other may not have asked again since its last turn.
    pub fn was_shared(&self, now: u64) -> bool {
        self.is_shared(now) || self.shared_until.load(Relaxed) > now
    }

    /// Whether this process has ended its turn since this was last asked: others may sleep until it does.
    pub fn has_handed(&self) -> bool {
        self.handed.load(Relaxed) && self.handed.swap(false, Relaxed)
    }
}
