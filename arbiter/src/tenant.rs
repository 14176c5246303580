//! One container on one GPU, as the arbiter sees it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_gpu_limiter::tuning::{AVERAGING_US, BUSY_FROM};
use vgpu_region::budget::Budget;
use vgpu_region::limits::{GpuLimit, LimitsPage, Turn};

/// Source of a tenant's budget.
///
/// The region is never mapped: the tenant can truncate the file, and touching a truncated page raises SIGBUS.
#[derive(Debug)]
pub enum Source {
    /// Region file, and the budget's offset in it.
    File(File, u64),
    /// Memory, for tests.
    Memory(&'static Budget),
}

/// A tenant's own claims.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    /// GPU time charged so far, in nanoseconds.
    used: u64,
    /// Time for which launches were held back for want of budget, in nanoseconds, summed over threads.
    waited: u64,
    /// Number of batches launched.
    activity: u64,
    /// Work in flight in nanoseconds.
    ahead: u64,
    /// Word of the turn that a launch waits for.
    want: u64,
    /// Word of the turn that the processes have applied; of a closed one: nothing of theirs runs any more.
    applied: u64,
    /// Whether the processes switch their channel groups ([`Budget::controls`]).
    controls: u64,
}

impl Report {
    fn of(budget: &Budget) -> Self {
        Self {
            used: budget.used.load(Relaxed),
            waited: budget.waited.load(Relaxed),
            activity: budget.activity.load(Relaxed),
            ahead: budget.ahead.load(Relaxed),
            want: budget.want.load(Relaxed),
            applied: budget.drained.load(Relaxed),
            controls: budget.controls.load(Relaxed),
        }
    }
}

impl Source {
    fn read(&self) -> Report {
        match self {
            Self::Memory(budget) => Report::of(budget),
            Self::File(file, offset) => {
                let mut copy = Budget::default();
                // SAFETY: the copy owns these bytes. It consists of atomics, for which every bit pattern is valid.
                let bytes = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut copy).cast::<u8>(), Budget::USED_BYTES) };
                // A tenant whose region is unreadable claims nothing, and so never gets a turn.
                if file.read_exact_at(bytes, *offset).is_ok() { Report::of(&copy) } else { Report::default() }
            }
        }
    }
}

/// Longest wait for a tenant to leave the GPU, or to come to it, in µs. After that the others get turns, and the GPU's scheduler shares it
/// between them and what is left of that tenant's work. A tenant that was at work within this time is active.
pub const DRAIN_TIMEOUT_US: u64 = 50_000;
/// Time without a launch after the expected end of a tenant's work, after which the tenant is idle, in µs.
const IDLE_AFTER_US: u64 = 1_000;
/// Upper limit of the work in flight that a tenant's claim is trusted for, in µs.
const MAX_IN_FLIGHT_US: u64 = 200_000;
/// Time after which overdue work no longer counts, in µs, as a killed process never reports its end.
const STUCK_EXPIRY_US: u64 = 20_000_000;

/// Longest wait for budget that is remembered, in µs.
const MAX_WAITED_US: f64 = 1_000_000.0;

/// Tenant of a GPU.
#[derive(Debug)]
pub struct Tenant {
    /// Limits of the tenant.
    pub limit: &'static GpuLimit,
    /// Where its turns are published.
    pub turn: &'static Turn,
    page: &'static LimitsPage,
    source: Source,
    report: Report,
    /// Expected end of its work plus the idle time, in µs.
    busy_until_us: u64,
    /// Last time it was seen at work, in µs. 0 if never.
    pub last_active_us: u64,
    /// Whether it has not applied its turn's word for long, and has work in flight. It gets no turns until it has.
    pub is_stuck: bool,
    /// Word of the last observed turn, and the time of its first observation in µs.
    observed: (u32, u64),
    /// Whether it works now and then, well within its share. Such a tenant takes no turns.
    pub is_interactive: bool,
    /// Whether it took turns at the scheduler's last tick.
    pub takes_turns: bool,
    /// Whether it had work until the end of its last turn.
    pub uses_turns: bool,
    /// Part of the GPU's time that it used lately, by its own account.
    use_rate: f64,
    /// Part of the time for which it had work lately, or waited for budget.
    demand: f64,
    /// Time for which it waited for budget, not yet in a sample, in µs.
    waited_us: f64,
    /// Sum of the times between samples so far, at most the averaging time, in µs.
    sampled_for_us: f64,
    /// Time of the last sample in µs, 0 before the first.
    sampled_us: u64,
    /// Report of that time.
    sampled: Report,
    /// Virtual time: GPU time received, divided by the weight. The tenant with the least is next.
    pub virtual_time: f64,
}

impl Tenant {
    /// Returns a tenant that has not been seen at work. `limit` and `turn` are parts of the page.
    #[must_use]
    pub fn new(page: &'static LimitsPage, limit: &'static GpuLimit, turn: &'static Turn, source: Source) -> Self {
        let report = source.read();
        Self {
            limit,
            turn,
            page,
            source,
            report,
            busy_until_us: 0,
            last_active_us: 0,
            is_stuck: false,
            observed: (0, 0),
            is_interactive: true,
            takes_turns: false,
            uses_turns: true,
            use_rate: 0.0,
            demand: 1.0,
            waited_us: 0.0,
            sampled_for_us: 0.0,
            sampled_us: 0,
            sampled: report,
            virtual_time: 0.0,
        }
    }

    /// Returns the compute limit in percent, from 1 to 99. `None` without a limit; such a tenant gets no turns.
    #[must_use]
    pub fn weight(&self) -> Option<u32> {
        self.limit.cores_limit()
    }

    /// Charges a turn, with the wait for its end, by the host's own clock: what the tenant made others wait, it pays for. `length_us` in µs.
    pub fn charge_turn(&mut self, length_us: u64) {
        self.virtual_time += length_us as f64 / f64::from(self.weight().unwrap_or(1));
    }

    /// Returns true if the processes' channels are switched off outside its turns.
    #[must_use]
    pub fn is_switched(&self) -> bool {
        self.report.controls == Budget::SWITCHES
    }

    /// Reads the tenant's report, unless it could say nothing new. `now` in µs.
    pub fn update(&mut self, now: u64) {
        let before = self.report;
        if !self.waits_for_turn() {
            self.report = self.source.read();
        }
        if self.report.activity != before.activity {
            self.busy_until_us = now + self.ahead_us() + IDLE_AFTER_US;
        }
        let word = self.turn.word.load(Relaxed);
        if self.observed.0 != word {
            self.observed = (word, now);
        }
        // Finished work is reported at the program's next launch or wait, and that of a killed program never.
        let due_us = match Turn::state(word) {
            Turn::FREE if !self.is_switched() => self.busy_until_us,
            Turn::CLOSED if !self.has_applied() => self.observed.1,
            Turn::OPEN if self.is_switched() && !self.has_applied() => self.observed.1,
            _ => now,
        };
        self.is_stuck = self.report.ahead != 0 && (DRAIN_TIMEOUT_US..STUCK_EXPIRY_US).contains(&now.saturating_sub(due_us));
        if self.has_work(now) {
            self.last_active_us = now;
        }
    }

    /// Takes a sample of what the tenant does, after [`Tenant::update`]: does it work all the time, or now and then? `now` in µs.
    pub fn sample(&mut self, now: u64) {
        if self.waits_for_turn() {
            return;
        }
        let (before_us, before) = (self.sampled_us, self.sampled);
        (self.sampled_us, self.sampled) = (now, self.report);
        if self.report.activity == 0 {
            return;
        }
        // From its first work on it counts as busy, until it was seen to be idle for half of the time.
        self.is_interactive &= self.sampled_for_us != 0.0;
        if before_us == 0 || now <= before_us {
            return;
        }
        let passed_us = (now - before_us) as f64;
        // At first the mean of all samples, and of a short time in which it did nothing: one that is busy from its first moment on counts as
        // busy after .3 s.
        self.sampled_for_us = (self.sampled_for_us + passed_us).min(AVERAGING_US);
        let part = (passed_us / (self.sampled_for_us + AVERAGING_US / 5.0).min(AVERAGING_US)).min(1.0);
        let rate = |before: u64, after: u64| (after.saturating_sub(before) as f64 / 1_000.0 / passed_us).min(1.0);
        self.use_rate += part * (rate(before.used, self.report.used) - self.use_rate);
        let is_free = self.turn_state() == Turn::FREE;
        let has_work = if is_free { self.runs_at_will(now) } else { self.has_work(now) };
        // A nap is reported when it is over: a long one counts in the samples after that.
        self.waited_us = (self.waited_us + self.report.waited.saturating_sub(before.waited) as f64 / 1_000.0).min(MAX_WAITED_US);
        let waited_us = self.waited_us.min(passed_us);
        self.waited_us -= waited_us;
        // In turns, one that works now and then has work for most of the time, as it waits for its turn. It needs little of that.
        let demand = if has_work && (is_free || self.uses_turns) { 1.0 } else { waited_us / passed_us };
        self.demand += part * (demand - self.demand);
        let share = f64::from(self.weight().unwrap_or(100)) / 100.0;
        // Priority 0 holds for a tenant's own share, and for no more.
        let has_priority = self.page.priority() == 0;
        // The distance between the two prevents frequent changes.
        let bound = if self.is_interactive || has_priority { BUSY_FROM } else { BUSY_FROM * 2.0 / 3.0 };
        self.is_interactive = self.use_rate < share * bound && (has_priority || self.demand < bound);
    }

    /// Returns the state of its turn: one of [`Turn`]'s.
    #[must_use]
    pub fn turn_state(&self) -> u32 {
        Turn::state(self.turn.word.load(Relaxed))
    }

    /// Returns the work in flight that its claim is trusted for, in µs.
    fn ahead_us(&self) -> u64 {
        (self.report.ahead / 1_000).min(MAX_IN_FLIGHT_US)
    }

    /// Returns whether the tenant has said that nothing of it runs and that it waits for its next turn: until then it has nothing to add.
    fn waits_for_turn(&self) -> bool {
        let word = self.turn.word.load(Relaxed);
        Turn::state(word) == Turn::CLOSED && self.has_applied() && self.report.want == u64::from(word)
    }

    /// Returns true if the tenant has, or wants, work on the GPU. `now` in µs.
    #[must_use]
    pub fn has_work(&self, now: u64) -> bool {
        let word = self.turn.word.load(Relaxed);
        now < self.busy_until_us || Turn::state(word) != Turn::FREE && self.report.want == u64::from(word)
    }

    /// Returns true if the tenant has no turns, and has work on the GPU. Between two samples one that works now and then has launched, too; what
    /// counts is whether it has work at this moment. `now` in µs.
    #[must_use]
    pub fn runs_at_will(&self, now: u64) -> bool {
        let has_work = if self.is_switched() { self.report.ahead != 0 } else { self.has_work(now) };
        self.turn_state() == Turn::FREE && has_work
    }

    /// Returns true if the GPU runs the tenant's work, as far as its scheduler comes to it. `now` in µs.
    #[must_use]
    pub fn is_on_gpu(&self, now: u64) -> bool {
        self.runs_at_will(now) || self.turn_state() == Turn::OPEN && self.is_at_work(now)
    }

    /// Returns true if the tenant uses its open turn. `now` in µs.
    #[must_use]
    pub fn is_at_work(&self, now: u64) -> bool {
        (self.has_applied() || !self.is_switched()) && self.has_work(now)
    }

    /// Returns true if it was seen at work lately. `now` in µs.
    #[must_use]
    pub fn is_active(&self, now: u64) -> bool {
        self.last_active_us != 0 && now.saturating_sub(self.last_active_us) < DRAIN_TIMEOUT_US
    }

    /// Returns the expected end of the work in flight, in µs.
    #[must_use]
    pub fn busy_until(&self) -> u64 {
        self.busy_until_us.saturating_sub(IDLE_AFTER_US)
    }

    /// Returns whether the tenant reports that it has applied the turn's word: that nothing of it runs, if the turn is closed.
    #[must_use]
    pub fn has_applied(&self) -> bool {
        self.report.applied == u64::from(self.turn.word.load(Relaxed))
    }

    /// Returns whether its processes were told lately to switch the channels on or off, and have not done it yet. `now` in µs.
    #[must_use]
    pub fn is_switching(&self, now: u64) -> bool {
        self.is_switched() && !self.has_applied() && now < self.observed.1 + DRAIN_TIMEOUT_US
    }

    /// Publishes a state of [`Turn`], for `length_us` if it is an open turn. A repeated state is not published again. `now` in µs.
    pub fn set_turn(&mut self, state: u32, length_us: u64, now: u64) {
        let word = self.turn.word.load(Relaxed);
        self.turn.length.store(u32::try_from(length_us).unwrap_or(u32::MAX), Relaxed);
        if Turn::state(word) == state && (state != Turn::OPEN || self.is_switched()) {
            return;
        }
        let word = (word & !3).wrapping_add(4) | state;
        self.turn.word.store(word, Release);
        self.observed = (word, now);
        if state == Turn::OPEN {
            self.busy_until_us = now + self.ahead_us() + IDLE_AFTER_US;
        }
        self.page.notify_turn(self.turn);
    }

    /// Sets the time slice of the tenant's channel groups, in µs; 0 is the driver's own. One whose turn is closed applies it at its next.
    pub fn set_slice(&self, slice_us: u32) {
        let is_closed = self.turn_state() == Turn::CLOSED;
        if self.turn.slice_us.swap(slice_us, Relaxed) != slice_us && !is_closed {
            self.page.notify_turn(self.turn);
        }
    }
}
