//! One container on one GPU, as the arbiter sees it.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_region::budget::Budget;
use vgpu_region::limits::{GpuLimit, Turn};

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
    /// Number of batches launched.
    activity: u64,
    /// Work in flight in nanoseconds.
    ahead: u64,
    /// Word of the turn that a launch waits for.
    want: u64,
    /// Word of the closed turn since which nothing is in flight.
    drained: u64,
}

impl Source {
    fn read(&self) -> Report {
        match self {
            Self::Memory(budget) => Report {
                activity: budget.activity.load(Relaxed),
                ahead: budget.ahead.load(Relaxed),
                want: budget.want.load(Relaxed),
                drained: budget.drained.load(Relaxed),
            },
            Self::File(file, offset) => {
                let mut words = [[0; 8]; 4];
                // The four fields are adjacent. A tenant whose region is unreadable claims nothing, and so never gets a turn.
                if file.read_exact_at(words.as_flattened_mut(), offset + offset_of!(Budget, activity) as u64).is_err() {
                    return Report::default();
                }
                let [activity, ahead, want, drained] = words.map(u64::from_ne_bytes);
                Report { activity, ahead, want, drained }
            }
        }
    }
}

const _: () = assert!(
    offset_of!(Budget, ahead) == offset_of!(Budget, activity) + 8
        && offset_of!(Budget, want) == offset_of!(Budget, activity) + 16
        && offset_of!(Budget, drained) == offset_of!(Budget, activity) + 24
);

/// Upper limit of the work in flight that a tenant's claim is trusted for, in µs.
const MAX_IN_FLIGHT_US: u64 = 200_000;
/// Longest wait after a turn for the tenant's work in flight, in µs. After that the others get turns, and the driver shares the GPU between
/// them and that work.
pub const DRAIN_TIMEOUT_US: u64 = 50_000;
/// Time after which overdue work no longer counts, in µs, as a killed process never reports its end.
const STUCK_EXPIRY_US: u64 = 20_000_000;
/// Time without a launch after the expected end of a tenant's work, in µs, after which the tenant is idle.
const IDLE_AFTER_US: u64 = 1_000;

/// Priority that precedes no other.
const LOWEST_PRIORITY: u32 = 1;
/// Most GPU time that a tenant may take before others at once, in µs: what accrues at half of the GPU while another has a long turn.
const MAX_CREDIT_US: f64 = 50_000.0;
/// Pause after a turn, in µs, below which a tenant's next request counts as made without a rest.
const MIN_REST_US: u64 = 2_000;

/// Tenant of a GPU.
#[derive(Debug)]
pub struct Tenant {
    /// Limits of the tenant.
    pub limit: &'static GpuLimit,
    /// Where its turns are published.
    pub turn: &'static Turn,
    source: Source,
    report: Report,
    /// Priority. Turns of 0 precede those of 1 while the tenant has used less than its limit.
    pub priority: u32,
    /// GPU time that the tenant may take before tenants of lower priority, in µs: accrues at its limit, and is spent by its turns and the waits
    /// for their end, whether it launches anything or not.
    credit_us: f64,
    /// Time up to which the credit has accrued, in µs.
    credited_us: u64,
    /// Expected end of its work plus the idle time, in µs.
    busy_until_us: u64,
    /// Last time it was seen at work, in µs. 0 if never.
    pub last_active_us: u64,
    /// Whether it has work in flight long after its turn. It gets no turns until that work is finished.
    pub is_stuck: bool,
    /// Word of the last observed turn, and the time of its first observation in µs.
    observed: (u32, u64),
    /// Whether it paused after its last turn before it asked again, or has had no turn yet.
    pub has_rested: bool,
    /// End of its last turn in µs, until it asks again.
    turn_ended_us: Option<u64>,
    /// Virtual time: GPU time received, divided by the weight. The tenant with the least is next.
    pub virtual_time: f64,
}

impl Tenant {
    /// Returns a tenant that has not been seen at work.
    #[must_use]
    pub fn new(limit: &'static GpuLimit, turn: &'static Turn, source: Source, priority: u32) -> Self {
        let report = source.read();
        Self {
            limit,
            turn,
            source,
            report,
            priority,
            credit_us: MAX_CREDIT_US,
            credited_us: 0,
            busy_until_us: 0,
            last_active_us: 0,
            is_stuck: false,
            observed: (0, 0),
            has_rested: true,
            turn_ended_us: None,
            virtual_time: 0.0,
        }
    }

    /// Returns the compute limit in percent, from 1 to 99. `None` without a limit; such a tenant gets no turns.
    #[must_use]
    pub fn weight(&self) -> Option<u32> {
        self.limit.cores_limit()
    }

    /// Returns the priority that counts: the lowest one if the tenant has used up what it may take first.
    #[must_use]
    pub fn rank(&self) -> u32 {
        if self.credit_us > 0.0 { self.priority } else { self.priority.max(LOWEST_PRIORITY) }
    }

    /// Charges a turn, with the wait for its end, by the host's own clock: what the tenant made others wait, it pays for. `length_us` in µs.
    pub fn charge_turn(&mut self, length_us: u64) {
        self.virtual_time += length_us as f64 / f64::from(self.weight().unwrap_or(1));
        self.credit_us -= length_us as f64;
    }

    fn accrue_credit(&mut self, now: u64) {
        let passed = now.saturating_sub(self.credited_us) as f64;
        self.credit_us = (self.credit_us + passed * f64::from(self.weight().unwrap_or(0)) / 100.0).min(MAX_CREDIT_US);
        self.credited_us = now;
    }

    /// Reads the tenant's report. `now` in µs.
    pub fn update(&mut self, now: u64) {
        self.accrue_credit(now);
        // A tenant that waits for a turn has no news before it gets one.
        if self.wants_turn() && self.has_drained() && !self.is_stuck {
            self.last_active_us = now;
            return;
        }
        let report = self.source.read();
        if report.activity != self.report.activity {
            self.busy_until_us = now + (report.ahead / 1000).min(MAX_IN_FLIGHT_US) + IDLE_AFTER_US;
        }
        self.report = report;
        if let Some(ended_us) = self.turn_ended_us
            && self.wants_turn()
        {
            self.has_rested = now > ended_us + MIN_REST_US;
            self.turn_ended_us = None;
        }
        let word = self.turn.word.load(Relaxed);
        if self.observed.0 != word {
            self.observed = (word, now);
        }
        // Finished work is reported at the program's next launch or wait, and that of a killed program never.
        let due_us = match Turn::state(word) {
            Turn::CLOSED if !self.has_drained() => self.observed.1,
            Turn::FREE => self.busy_until_us,
            _ => now,
        };
        self.is_stuck = report.ahead != 0 && (DRAIN_TIMEOUT_US..STUCK_EXPIRY_US).contains(&now.saturating_sub(due_us));
        if self.is_busy(now) || self.wants_turn() {
            self.last_active_us = now;
        }
    }

    /// Returns whether the tenant should have work in flight, or has launched lately. `now` in µs.
    #[must_use]
    pub fn is_busy(&self, now: u64) -> bool {
        now < self.busy_until_us
    }

    /// Returns the expected end of the work in flight, in µs.
    #[must_use]
    pub fn busy_until(&self) -> u64 {
        self.busy_until_us.saturating_sub(IDLE_AFTER_US)
    }

    /// Returns whether a launch waits for the tenant's turn.
    #[must_use]
    pub fn wants_turn(&self) -> bool {
        let word = self.turn.word.load(Relaxed);
        Turn::state(word) != Turn::FREE && self.report.want == u64::from(word)
    }

    /// Returns whether the tenant reports that nothing is in flight since its turn was closed.
    #[must_use]
    pub fn has_drained(&self) -> bool {
        let word = self.turn.word.load(Relaxed);
        Turn::state(word) == Turn::CLOSED && self.report.drained == u64::from(word)
    }

    /// Publishes a state of [`Turn`], for `length_us` if it is an open turn. A repeated state other than an open turn is not published again.
    pub fn set_turn(&self, state: u32, length_us: u64) {
        let word = self.turn.word.load(Relaxed);
        if Turn::state(word) == state && state != Turn::OPEN {
            return;
        }
        self.turn.length.store(u32::try_from(length_us).unwrap_or(u32::MAX), Relaxed);
        self.turn.word.store((word & !3).wrapping_add(4) | state, Release);
        wake(&self.turn.word);
    }

    /// Ends the tenant's turn. `now` in µs.
    pub fn end_turn(&mut self, now: u64) {
        self.set_turn(Turn::CLOSED, 0);
        (self.has_rested, self.turn_ended_us) = (true, Some(now));
    }

    /// Publishes whether other tenants have work on the GPU outside their turns.
    pub fn set_crowded(&self, crowded: bool) {
        self.turn.crowded.store(u32::from(crowded), Relaxed);
    }

    /// Lends the tenant a share, in percent. 0 is none.
    pub fn lend(&self, percent: u32) {
        self.turn.lent.store(percent, Relaxed);
    }
}

fn wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: the word is in shared memory that stays mapped, and a wake without waiters has no effect.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
