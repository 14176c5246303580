//! Closes batches: full ones, those followed by other work, and those before a wait of the program or of a launch.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::batch::{BatchEnd, MAX_LAUNCHES};
use crate::engine::{Engine, Handle, LEGACY_STREAM};
use crate::meter::Meter;
use crate::stream::{RING, Stream, StreamGuard};
use crate::tuning::{BATCH_NS, MIN_PAUSE_NS};

/// Closes a stream's batch because something else follows in the stream: a copy, a wait for another stream, a host function. Its time is not
/// GPU time of the kernels.
pub fn interrupt(engine: &impl Engine, meter: &Meter, stream: &Stream, handle: Handle) {
    let Some(mut guard) = stream.lock() else { return };
    let state = guard.open().1;
    if state.is_interrupted {
        return;
    }
    state.is_interrupted = true;
    close_open_batch(engine, meter, stream, handle, &mut guard);
}

/// Closes the open batch, and returns true if its end was measured. If the stream has been idle for long, an event would show when it was
/// recorded and not when the work ended: then the end is guessed, and the next batch gets its own start event.
fn close_open_batch(engine: &impl Engine, meter: &Meter, stream: &Stream, handle: Handle, guard: &mut StreamGuard<'_>) -> bool {
    let now = engine.now_approx();
    let (batch, state) = guard.open();
    if batch.count == 0 {
        // A start event is correct in any stream, so the stream, which may be destroyed, need not be queried.
        state.is_interrupted |= now >= state.idle_from.saturating_add(MIN_PAUSE_NS);
        return false;
    }
    batch.was_found_idle = now >= state.idle_from && engine.is_idle(handle);
    let has_paused = has_paused(engine, meter, stream, (guard, handle), now);
    close_batch(engine, meter, stream, handle, guard, if has_paused { BatchEnd::Guessed } else { BatchEnd::Event });
    !has_paused
}

/// Returns true if the stream was idle for longer than [`MIN_PAUSE_NS`], just now or before the last launches of the fast path.
pub(crate) fn has_paused(
    engine: &impl Engine,
    meter: &Meter,
    stream: &Stream,
    (guard, handle): (&mut StreamGuard<'_>, Handle),
    now: u64,
) -> bool {
    let state = guard.open().1;
    if now < state.idle_from.saturating_add(MIN_PAUSE_NS) {
        return false;
    }
    if engine.is_idle(handle) {
        return true;
    }
    // The launches of the fast path followed a pause if they are the only work left, and the program launched nothing for long before them.
    if !state.has_fast_launches || now.saturating_sub(state.clock_read_at) < MIN_PAUSE_NS {
        return false;
    }
    if let Some(rate) = meter.account.rate() {
        meter.harvest(engine, rate);
    }
    stream.closed_batches() == 0
}

/// Called before the program waits for everything in these streams: their work is measured up to here, and not up to the next launch.
pub fn before_wait<'a>(engine: &impl Engine, meter: &Meter, streams: impl Iterator<Item = &'a Stream>) {
    for stream in streams {
        if !stream.has_open_batch.load(Relaxed) && stream.closed_batches() == 0 {
            continue;
        }
        if let Some(mut guard) = stream.visit() {
            let handle = stream.handle.load(Relaxed);
            if guard.open().0.count == 0 || !stream.is_retired.load(Acquire) && engine.can_record_in(handle) {
                let is_measured = close_open_batch(engine, meter, stream, handle, &mut guard);
                guard.open().1.tail_was_guessed &= !is_measured;
            }
            guard.open().1.wait_began_at = engine.now_approx();
            stream.is_awaited.store(true, Relaxed);
        }
    }
    // The work of other streams may finish before the wait does. An event in the legacy stream would wait for all of them.
    if meter.has_concurrent_streams.load(Relaxed) {
        meter.for_each_open_batch(engine, |stream, handle, guard| {
            if handle as usize > LEGACY_STREAM {
                close_open_batch(engine, meter, stream, handle, guard);
            }
        });
    }
}

/// Closes the open batches of all streams, so that their work is measured up to here.
pub(crate) fn close_all(engine: &impl Engine, meter: &Meter) {
    meter.for_each_open_batch(engine, |stream, handle, guard| {
        close_open_batch(engine, meter, stream, handle, guard);
    });
}

/// Closes all batches and charges the finished ones. Called when no more launches follow.
pub fn finish(engine: &impl Engine, meter: &Meter) {
    close_all(engine, meter);
    harvest_in_flight(engine, meter);
}

/// Charges finished batches, if there is work in flight. A program that stops launching has then been charged for what it used.
fn harvest_in_flight(engine: &impl Engine, meter: &Meter) {
    if let Some(rate) = meter.account.rate()
        && meter.account.in_flight_ns.load(Relaxed) != 0
    {
        meter.harvest(engine, rate);
    }
}

/// Called after the program has waited for an event. Other threads may go on launching, so this harvests only now and then.
pub fn after_event(engine: &impl Engine, meter: &Meter) {
    if engine.now_approx().saturating_sub(meter.known_until.load(Relaxed)) > BATCH_NS {
        harvest_in_flight(engine, meter);
    }
}

/// Called after the program has waited for everything in these streams: a pause that follows begins here.
pub fn after_wait<'a>(engine: &impl Engine, meter: &Meter, streams: impl Iterator<Item = &'a Stream>) {
    harvest_in_flight(engine, meter);
    for stream in streams {
        if stream.is_awaited.load(Relaxed)
            && stream.is_awaited.swap(false, Relaxed)
            && let Some(mut guard) = stream.visit()
            && guard.open().0.count == 0
        {
            guard.open().1.end_wait(engine.now_approx());
        }
    }
}

/// Creates the event if there is none. Returns false if the driver refused.
pub(crate) fn ensure_event(engine: &impl Engine, event: &mut Handle) -> bool {
    if event.is_null() {
        *event = engine.create_event().unwrap_or(core::ptr::null_mut());
    }
    !event.is_null()
}

/// Closes the open batch with an event, or with a guessed end if the stream has been idle for an unknown time. The batch stays open if the
/// stream's ring is full.
pub(crate) fn close_batch(
    engine: &impl Engine,
    meter: &Meter,
    stream: &Stream,
    handle: Handle,
    guard: &mut StreamGuard<'_>,
    end: BatchEnd,
) {
    if stream.closed_batches() >= RING - 1 {
        return;
    }
    let (batch, state) = guard.open();
    meter.account.phase.advance_leader(state.phase);
    let guest_ns = stream.guest_ns.swap(0, Relaxed);
    if guest_ns != 0 {
        // The kinds of other threads' launches are unknown: no cost can be learned from the batch, and loading did not delay those launches.
        batch.loading_ns = 0;
        batch.expected_ns += guest_ns;
        (batch.count, batch.is_uniform) = (MAX_LAUNCHES as u32 + 1, false);
    }
    let is_guessed =
        end == BatchEnd::Guessed || !(ensure_event(engine, &mut batch.end_event) && engine.record_event(batch.end_event, handle));
    batch.end = if is_guessed { BatchEnd::Guessed } else { BatchEnd::Event };
    if is_guessed {
        // The next launches are measured soon, and not from the end of this batch.
        (state.max_launches, state.tail_was_guessed, state.is_interrupted) = (1, true, true);
    }
    state.has_fast_launches = false;
    meter.account.add_in_flight(batch);
    stream.has_open_batch.store(false, Relaxed);
    guard.close();
}
