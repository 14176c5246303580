//! The path of a launch: whether it may be made, and into which batch it goes.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Rate;

use crate::batch::{Batch, BatchEnd, BatchStart, MAX_LAUNCHES};
use crate::batch_close::close_batch;
use crate::cost_model::LaunchKind;
use crate::engine::{Engine, EventStatus, Handle, SUCCESS, Status};
use crate::meter::Meter;
use crate::stream::{FastGuard, Stream, StreamGuard, StreamState};
use crate::tuning::{BATCH_NS, MIN_PAUSE_NS};

/// Batch growth factor: how many times as many launches the next batch may have.
const GROWTH: u32 = 4;
/// After a pause with a guessed end, a batch is also closed at random, after one in this many times the launches since the pause: the last
/// launches before a pause may cost more than they once did.
const RANDOM_CLOSE_PERIOD: u32 = 8;
/// Cost of a launch of which none was measured yet, in nanoseconds.
const UNKNOWN_COST_NS: u64 = 200_000;
/// A launch call that takes longer than this did something else first, such as loading the function. In nanoseconds.
const SLOW_CALL_NS: u64 = 100_000;

/// Makes a launch by `call` when it may be made, and measures it. `key` is the key of its kind; `is_collective` tells whether it may wait for
/// other GPUs. Returns `None`, without a launch, if there is no way to measure it.
#[inline]
pub fn launch(
    engine: &impl Engine,
    meter: &Meter,
    (stream, handle): (&Stream, Handle),
    key: u64,
    is_collective: impl FnOnce() -> bool,
    call: impl FnOnce() -> Status,
) -> Option<Status> {
    let mut guard = stream.lock_fast();
    if let Some(guard) = &mut guard
        && guard.fast_path().try_launch(key, || meter.account.costs)
    {
        let status = call();
        if status != SUCCESS {
            guard.fast_path().undo();
        }
        return Some(status);
    }
    let guard = guard.map(FastGuard::end_fast_path);
    let Some(rate) = meter.account.rate() else { return Some(call()) };
    let mut launch = Launch::new(engine, meter, (stream, handle), guard, key, rate, is_collective);
    launch.begin(engine);
    if launch.is_unmeasurable {
        return None;
    }
    let status = call();
    launch.end(engine, status == SUCCESS);
    Some(status)
}

/// A launch in progress.
pub(crate) struct Launch<'a> {
    pub meter: &'a Meter,
    pub stream: &'a Stream,
    pub handle: Handle,
    /// The stream's lock; `None` if another thread launches into the stream.
    pub guard: Option<StreamGuard<'a>>,
    key: u64,
    pub kind: LaunchKind,
    /// The cost is known, or the launch is collective.
    pub is_cost_known: bool,
    /// Expected GPU time, in nanoseconds.
    pub cost_ns: u64,
    /// Host time at which the clock was last read for this launch, in nanoseconds.
    pub now: u64,
    pub rate: Rate,
    /// It was admitted without budget, alone.
    pub is_on_credit: bool,
    /// It has waited until another launch of unknown cost was measured.
    pub waited_for_measurement: bool,
    /// It may wait for other GPUs.
    pub is_collective: bool,
    /// There is no event to measure it with, and no memory for one.
    pub is_unmeasurable: bool,
}

impl<'a> Launch<'a> {
    /// Returns a launch that the program wants to make. `guard` is its stream's lock, unless another thread has it.
    #[inline]
    pub fn new(
        engine: &impl Engine,
        meter: &'a Meter,
        (stream, handle): (&'a Stream, Handle),
        guard: Option<StreamGuard<'a>>,
        key: u64,
        rate: Rate,
        is_collective: impl FnOnce() -> bool,
    ) -> Self {
        let costs = meter.account.costs;
        let kind = costs.kind(key);
        let cost_ns = costs.cost_ns(kind);
        if cost_ns.is_none() && is_collective() {
            costs.set_collective(kind, true);
        }
        let is_collective = costs.is_collective(kind);
        Self {
            meter,
            stream,
            handle,
            now: engine.now_approx(),
            guard,
            key,
            kind,
            // A collective launch is measured once the other GPUs have come, and no launch may wait for that. So its cost counts as known, and
            // the first one is charged at most the unknown cost.
            is_cost_known: cost_ns.is_some() || is_collective,
            cost_ns: cost_ns.map_or(UNKNOWN_COST_NS, u64::from),
            rate,
            is_on_credit: false,
            waited_for_measurement: false,
            is_collective,
            is_unmeasurable: false,
        }
    }

    /// Waits until the launch may be made, and prepares to measure it.
    #[inline]
    pub fn begin(&mut self, engine: &impl Engine) {
        if !self.fits_open_batch() {
            self.prepare(engine);
        }
    }

    /// Returns true if the launch goes into the open batch and nothing else has to be done. This holds for nearly all launches.
    #[inline]
    fn fits_open_batch(&mut self) -> bool {
        self.guard.as_mut().is_some_and(|guard| {
            let (batch, state) = guard.open();
            batch.count != 0
                && batch.expected_ns < state.capacity_ns
                && self.is_cost_known
                && self.cost_ns < BATCH_NS
                && self.now < state.idle_from + MIN_PAUSE_NS
                && self.now < state.close_at
                && !batch.must_not_mix(self.kind, self.is_collective)
                && !state.is_interrupted
        })
    }

    /// Called after the launch call. Adds the launch to the batch if the driver accepted it.
    #[inline]
    pub fn end(&mut self, engine: &impl Engine, is_accepted: bool) {
        if !is_accepted {
            return;
        }
        let Some(mut guard) = self.guard.take() else {
            self.stream.guest_ns.fetch_add(self.cost_ns, Relaxed);
            return;
        };
        let (batch, state) = guard.open();
        batch.add(self.kind);
        self.stream.handle.store(self.handle, Relaxed);
        self.stream.has_open_batch.store(true, Relaxed);
        batch.expected_ns += self.cost_ns;
        batch.has_unknown_cost |= !self.is_cost_known;
        batch.is_collective |= self.is_collective;
        let phase = &self.meter.account.phase;
        if batch.count == 1 {
            phase.join(&mut state.phase);
        }
        state.phase.given_ns += self.cost_ns;
        if batch.count == 1 {
            phase.advance_leader(state.phase);
        }
        let launched_at = if batch.follows_wake { self.excuse_lag(engine, batch, state) } else { self.now };
        state.idle_from = state.idle_from.max(launched_at) + self.cost_ns;
        if !self.is_cost_known && batch.start == BatchStart::Event && batch.count == 1 {
            let call_ns = engine.now().saturating_sub(self.now);
            // The function was loaded first, while the stream was idle: the start event has been reached. Not so if the channels are off. A call
            // that waits for its work (`CUDA_LAUNCH_BLOCKING`) leaves the stream idle.
            let has_loaded =
                call_ns > SLOW_CALL_NS && engine.event_status(batch.start_event) == EventStatus::Done && !engine.is_idle(self.handle);
            batch.loading_ns = if has_loaded { call_ns } else { 0 };
        }
        let is_random_close = state.tail_was_guessed && is_random_close(state, batch.count, engine.now_approx());
        if batch.count >= state.max_launches || batch.expected_ns >= state.capacity_ns || !self.is_cost_known || is_random_close {
            state.launches_since_pause = state.launches_since_pause.saturating_add(batch.count);
            if !is_random_close {
                state.max_launches = (state.max_launches * GROWTH).clamp(1, MAX_LAUNCHES as u32);
            }
            close_batch(engine, self.meter, self.stream, self.handle, &mut guard, BatchEnd::Event);
        } else {
            (state.clock_read_at, state.has_fast_launches) = (launched_at, false);
            if !(state.tail_was_guessed || batch.is_collective || self.stream.is_overflow.load(Relaxed)) {
                let (launches, left_ns) = (state.max_launches - batch.count - 1, state.capacity_ns - batch.expected_ns);
                guard.fast_path().allow(self.key, (self.kind, self.cost_ns), launches as usize, left_ns);
            }
        }
    }

    /// Excuses the lag of a host that has just been woken, within its allowance. Returns the host time of the launch.
    #[inline(always)]
    fn excuse_lag(&self, engine: &impl Engine, batch: &mut Batch, state: &mut StreamState) -> u64 {
        let mut launched_at = engine.now_approx();
        if launched_at.saturating_sub(self.now) > SLOW_CALL_NS && engine.is_idle(self.handle) {
            launched_at = self.now;
        }
        let excused_ns = launched_at.saturating_sub(state.idle_from).min(state.lag_allowance_ns);
        state.lag_allowance_ns -= excused_ns;
        batch.wake_lag_ns += excused_ns;
        launched_at
    }
}

/// Returns true ever more rarely with the number of launches since the pause, in an order that a program cannot predict.
#[inline(always)]
fn is_random_close(state: &StreamState, launches: u32, now: u64) -> bool {
    let period = state.launches_since_pause.saturating_add(launches).saturating_mul(RANDOM_CLOSE_PERIOD);
    (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(period.into())
}
