//! Where batches end: when they are full, when something else follows, and when the program or a launch waits.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::engine::Handle;
use crate::engine::{Engine, LEGACY};
use crate::meter::Meter;
use crate::stream::{Batch, Claim, MOST, Open, RING, Stream};
use crate::tuning::GAP;

/// Who waited for an event does the accounts if they were not done for so many nanoseconds.
const LATELY: u64 = 1_000_000;
/// The driver does not let a program wait because so many launches are in flight: it takes about a thousand in each stream (NVIDIA's developer
/// forum, thread 68937).
const FEW: u32 = 512;

/// Closes a stream's batch because something else follows in it: a copy, a wait for another stream, a host function. What that
/// takes is not the kernels' time.
pub fn interrupt(engine: &impl Engine, meter: &Meter, stream: &Stream, handle: Handle) {
    let Some(mut claim) = stream.claim() else { return };
    let open = claim.open().1;
    if open.interrupted {
        return;
    }
    open.interrupted = true;
    end(engine, meter, stream, handle, &mut claim);
}

/// Ends what is in the stream now, and says whether that was measured. If the stream has been idle for long, an event would say when it was
/// recorded, and nothing of the work before it: that is guessed, and what comes next begins anew.
fn end(engine: &impl Engine, meter: &Meter, stream: &Stream, handle: Handle, claim: &mut Claim<'_>) -> bool {
    let now = engine.about_now();
    let (batch, open) = claim.open();
    if batch.count == 0 {
        // A start event is right in any stream, so this one, which may be gone, need not be asked.
        open.interrupted |= now >= open.idle_from.saturating_add(GAP);
        return false;
    }
    batch.at_most = now >= open.idle_from && engine.is_idle(handle);
    let idle = batch.at_most;
    let paused = has_paused(engine, meter, stream, claim, now, || idle);
    close(engine, meter, stream, handle, claim, paused);
    !paused
}

/// Whether the stream had nothing to do for so long that it does not count as used, before now or before the last launches that did not ask what
/// time it is. `is_idle` says whether it has nothing to do now.
pub fn has_paused(
    engine: &impl Engine,
    meter: &Meter,
    stream: &Stream,
    claim: &mut Claim<'_>,
    now: u64,
    is_idle: impl FnOnce() -> bool,
) -> bool {
    let (batch, open) = claim.open();
    if now < open.idle_from.saturating_add(GAP) {
        return false;
    }
    if is_idle() {
        return true;
    }
    // If they are all that there is to do: the program made none for long before them, and it was not the driver that let it wait, as it does
    // when too many are in flight.
    if !open.unasked || now.saturating_sub(open.asked_at) < GAP || batch.count > FEW {
        return false;
    }
    if let Some(rate) = meter.account.rate() {
        meter.harvest(engine, rate);
    }
    stream.waiting() == 0
}

/// The program is about to wait for all that is in these streams: it is measured up to here, and not up to when somebody comes back.
pub fn before_wait<'a>(engine: &impl Engine, meter: &Meter, streams: impl Iterator<Item = &'a Stream>) {
    for stream in streams {
        if !stream.dirty.load(Relaxed) && stream.waiting() == 0 {
            continue;
        }
        if let Some(mut claim) = stream.visit() {
            let handle = stream.handle.load(Relaxed);
            if claim.open().0.count == 0 || !stream.retired.load(Acquire) && engine.reaches(handle) {
                let seen = end(engine, meter, stream, handle, &mut claim);
                claim.open().1.unseen &= !seen;
            }
            claim.open().1.host.waits(engine.about_now());
            stream.awaited.store(true, Relaxed);
        }
    }
    // What the others have is over before the wait is, perhaps. An event in the legacy stream would wait for them.
    if meter.has_many_streams() {
        meter.end_batches(engine, |stream, handle, claim| {
            if handle as usize > LEGACY {
                end(engine, meter, stream, handle, claim);
            }
        });
    }
}

/// Ends the open batches of all streams, so that what is in them is measured up to here.
pub fn end_batches(engine: &impl Engine, meter: &Meter) {
    meter.end_batches(engine, |stream, handle, claim| {
        end(engine, meter, stream, handle, claim);
    });
}

/// Nothing more comes: what has finished is charged.
pub fn finish(engine: &impl Engine, meter: &Meter) {
    end_batches(engine, meter);
    settle(engine, meter);
}

/// Does the accounts: who launches nothing more has then told what it used.
fn settle(engine: &impl Engine, meter: &Meter) {
    if let Some(rate) = meter.account.rate()
        && meter.account.in_flight.load(Relaxed) != 0
    {
        meter.harvest(engine, rate);
    }
}

/// The program has waited for an event. It may be in a thread beside one that launches, and does the accounts now and then.
pub fn after_event(engine: &impl Engine, meter: &Meter) {
    if engine.about_now().saturating_sub(meter.mark.load(Relaxed)) > LATELY {
        settle(engine, meter);
    }
}

/// It has waited: whatever pause follows begins now.
pub fn after_wait<'a>(engine: &impl Engine, meter: &Meter, streams: impl Iterator<Item = &'a Stream>) {
    settle(engine, meter);
    for stream in streams {
        if stream.awaited.load(Relaxed)
            && stream.awaited.swap(false, Relaxed)
            && let Some(mut claim) = stream.visit()
            && claim.open().0.count == 0
        {
            let open = claim.open().1;
            open.idle_from = engine.about_now();
            open.host.has_waited(open.idle_from);
            open.has_waited = true;
            // It is awake by itself.
            open.excuse = if open.slow { open.excuse } else { 0 };
        }
    }
}

pub fn ready(engine: &impl Engine, event: &mut Handle) -> bool {
    if event.is_null() {
        *event = engine.create().unwrap_or(core::ptr::null_mut());
    }
    !event.is_null()
}

/// Ends the open batch: with an event, or, if the stream has been idle since some time nobody saw, by guess. With no place for it,
/// it stays open.
pub fn close(engine: &impl Engine, meter: &Meter, stream: &Stream, handle: Handle, claim: &mut Claim<'_>, guess: bool) {
    if stream.waiting() >= RING - 1 {
        return;
    }
    let (batch, open): (&mut Batch, &mut Open) = claim.open();
    if !batch.covered {
        meter.account.rounds.reach(open.had);
    }
    open.waking.launched(batch.count);
    let guests = stream.guests.swap(0, Relaxed);
    if guests != 0 {
        // Who else launched is not known: nothing can be learned from such a batch, nor were they held up by what was loaded.
        batch.loading = 0;
        batch.expected += guests;
        (batch.count, batch.uniform) = (MOST as u32 + 1, false);
    }
    batch.guessed = guess || !(ready(engine, &mut batch.end) && engine.record(batch.end, handle));
    if batch.guessed {
        // The next ones are measured soon enough, and not from where this one ended.
        (open.most, open.unseen, open.interrupted) = (1, true, true);
    }
    open.unasked = false;
    meter.account.departed(batch, open.idle_from);
    stream.dirty.store(false, Relaxed);
    claim.close();
}
