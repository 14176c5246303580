//! Prepares a launch that does not fit into the open batch: closes that batch, waits for admission, and begins the next one.
//!
//! The parts of [`Launch::prepare`] are `#[inline(always)]`: it is cold, and the compiler does not inline into cold functions otherwise.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::batch::{BatchEnd, BatchStart, MAX_LAUNCHES};
use crate::batch_close::{close_batch, ensure_event, has_paused};
use crate::engine::Engine;
use crate::launch::Launch;
use crate::stream::{RING, StreamGuard};
use crate::tuning::{BATCH_NS, MIN_PAUSE_NS, WAKE_ALLOWANCE_NS};

/// Sleep while another thread has the lock of the overflow stream, in nanoseconds, and the number of sleeps.
const OVERFLOW_LOCK_SLEEP_NS: u64 = 20_000;
const OVERFLOW_LOCK_TRIES: u32 = 5_000;

impl<'a> Launch<'a> {
    /// Waits until the launch may be made, and prepares to measure it.
    #[cold]
    #[inline(never)]
    pub fn prepare(&mut self, engine: &impl Engine) {
        self.now = engine.now();
        let is_overflow = self.stream.is_overflow.load(Relaxed);
        let Some(mut guard) = self.guard.take().or_else(|| if is_overflow { self.lock_overflow(engine) } else { None }) else {
            // Another thread launches into this stream right now. Its batch measures this launch too.
            if !self.is_cost_known || self.stream.guest_ns.load(Relaxed) + self.cost_ns >= BATCH_NS {
                _ = self.wait(engine);
            }
            return;
        };
        let (batch, state) = guard.open();
        state.is_interrupted |= is_overflow;
        // Checked before any wait: afterwards the stream is idle because this launch waited.
        if batch.count != 0 || self.stream.guest_ns.load(Relaxed) != 0 {
            self.close_previous(engine, &mut guard);
        }
        if guard.open().0.count == 0 || self.stream.closed_batches() >= RING - 1 {
            self.begin_batch(engine, &mut guard, is_overflow);
            if self.is_unmeasurable {
                return;
            }
        }
        let (batch, state) = guard.open();
        if batch.count == 0 {
            batch.follows_wake = self.is_cost_known && state.lag_allowance_ns != 0 && !self.meter.has_concurrent_streams.load(Relaxed);
        }
        self.guard = Some(guard);
    }

    /// Returns the lock of the overflow stream. Returns `None` if another thread has it for very long.
    fn lock_overflow(&self, engine: &impl Engine) -> Option<StreamGuard<'a>> {
        (0..OVERFLOW_LOCK_TRIES).find_map(|_| {
            let guard = self.stream.lock();
            if guard.is_none() {
                engine.sleep(OVERFLOW_LOCK_SLEEP_NS);
            }
            guard
        })
    }

    /// Closes the open batch if this launch must not be measured with it.
    #[inline(always)]
    fn close_previous(&self, engine: &impl Engine, guard: &mut StreamGuard<'_>) {
        let has_paused = has_paused(engine, self.meter, self.stream, (guard, self.handle), self.now);
        // A long launch, or one of unknown cost, gets a batch of its own.
        let is_separate = !self.is_cost_known || self.cost_ns >= BATCH_NS || guard.open().0.must_not_mix(self.kind, self.is_collective);
        let state = guard.open().1;
        if has_paused || state.is_interrupted || is_separate || self.now >= state.close_at {
            let end = if has_paused { BatchEnd::Guessed } else { BatchEnd::Event };
            close_batch(engine, self.meter, self.stream, self.handle, guard, end);
        }
    }

    /// Waits for admission and begins a batch, if the open one is empty.
    #[inline(always)]
    fn begin_batch(&mut self, engine: &impl Engine, guard: &mut StreamGuard<'_>, is_overflow: bool) {
        let had_paused = self.now >= guard.open().1.idle_from + MIN_PAUSE_NS;
        let was_cost_known = self.is_cost_known;
        let account = self.meter.account;
        let progress = guard.open().1.phase;
        let goes_on = !is_overflow && self.stream.closed_batches() < RING - 2 && account.phase.may_catch_up(progress, self.cost_ns);
        // This launch was held back, or others of its gang phase were.
        let was_held = (!goes_on && self.wait(engine)) || account.phase.is_new(progress);
        let (batch, state) = guard.open();
        if batch.count == 0 {
            batch.is_host_bound = state.is_host_bound && !self.meter.has_concurrent_streams.load(Relaxed);
        }
        // However small it is then: it is not charged before. In turns the arbiter counts batches to see which container is active.
        state.close_at = self.now + if account.turns.are_taken() { BATCH_NS } else { 4 * BATCH_NS };
        state.capacity_ns = if self.is_on_credit { 0 } else { BATCH_NS / account.phase.stream_count() };
        let is_idle = self.stream.closed_batches() == 0 || engine.is_idle(self.handle);
        if !is_idle {
            // The last launches take longer than expected: the host is not late.
            state.idle_from = state.idle_from.max(self.now);
        }
        let was_delayed = was_held || self.waited_for_measurement;
        // After a wait of the program the stream is always idle, and so it is when a launch waited for the last one to be measured.
        let is_telling = !was_delayed && !state.is_interrupted && was_cost_known && !state.program_waited && !had_paused;
        if is_telling {
            state.is_host_bound = is_idle;
        }
        state.program_waited = false;
        if was_held {
            state.resumed_at = self.now;
        }
        // The pause before this batch is not the program's GPU time: it was held back, or it paused, or the driver may have loaded a new
        // function or waited for another stream's.
        let follows_pause = (was_delayed || had_paused || !was_cost_known) && is_idle;
        let needs_start = batch.count == 0 && (state.is_interrupted || follows_pause);
        if batch.count == 0
            && !(ensure_event(engine, &mut batch.end_event) && (!needs_start || ensure_event(engine, &mut batch.start_event)))
        {
            self.is_unmeasurable = true;
            return;
        }
        if needs_start {
            self.record_start(engine, guard, was_held, was_delayed && !is_overflow);
        }
    }

    /// Records the start event of the batch. `was_paused_by_us` says that the pause before it was not the program's.
    #[inline(always)]
    fn record_start(&self, engine: &impl Engine, guard: &mut StreamGuard<'_>, was_held: bool, was_paused_by_us: bool) {
        let (batch, state) = guard.open();
        if self.meter.account.in_flight_ns.load(Acquire) == 0 {
            self.meter.known_until.store(self.now, Relaxed);
        }
        let is_recorded = engine.record_event(batch.start_event, self.handle);
        batch.start = if is_recorded { BatchStart::Event } else { BatchStart::PreviousEnd };
        state.is_interrupted = !is_recorded;
        state.idle_from = self.now;
        state.lag_allowance_ns = if was_held { WAKE_ALLOWANCE_NS } else { 0 };
        // Few launches at first: if the program pauses after them, they are measured. Not needed if the limiter caused the pause.
        (state.max_launches, state.launches_since_pause) = (if was_paused_by_us { MAX_LAUNCHES as u32 } else { 1 }, 0);
    }
}
