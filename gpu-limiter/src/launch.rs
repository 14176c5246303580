//! Around every launch: into which batch it goes, and when it may.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use vgpu_region::budget::Rate;

use crate::batch_close::{close, has_paused, ready};
use crate::cost_model::Kind;
use crate::engine::Engine;
use crate::engine::{Handle, SUCCESS, Status};
use crate::meter::Meter;
use crate::stream::{Claim, MOST, QuickClaim, RING, Stream};
use crate::tuning::GAP;

/// A batch is closed when it is expected to take so many nanoseconds: long enough that its event (2 µs) does not matter, short
/// enough that what it took is known soon.
const BATCH: u64 = 800_000;
/// Batches grow from one to the next by so much, and with budget to spare by so much, unless the last ones before pauses were never seen to end.
const GROWTH: u32 = 2;
const GROWTH_TO_SPARE: u32 = 16;
/// And then a batch is also closed after one in so many times as many launches as there were since the pause, and which one is chance: those
/// before a pause may cost more than they did once.
const UNSEEN: u32 = 8;
/// With budget to spare a batch is closed when it is expected to take so many nanoseconds, or has so many launches of one kind: of a thousand
/// launches some three then take longer than the others.
const BATCH_TO_SPARE: u64 = 3_200_000;
const MOST_TO_SPARE: u32 = 1024;
/// A batch is closed with the first launch after so many nanoseconds, however little is in it: nothing is charged before. In a turn sooner, as
/// the arbiter counts batches to see who is at work.
const OPEN: u64 = 4_000_000;
const OPEN_IN_TURN: u64 = 1_000_000;
/// How much time a host may lose in a burst, until it is as quick as before its nap, without being charged for it, unless it does not keep up
/// with the GPU ([`super::waking`]). The GPU had nothing to do in that time. In nanoseconds.
const WAKING: u64 = 200_000;
/// From the start event of a batch to its first launch, in nanoseconds.
const START: u64 = 3_400;
/// What a launch is taken to cost before one like it was measured, in nanoseconds.
const UNKNOWN: u64 = 200_000;
/// A launch that takes the host longer than this did something else first, such as loading the function.
const SLOW: u64 = 100_000;
/// How long to wait for another thread's launch in a place that several streams share, in nanoseconds, and how often.
const SHORT_CLAIM: u64 = 20_000;
const LONG_CLAIM: u32 = 5_000;

/// Whether it is one of so many moments, in no order that a program could know.
fn is_one_in(many: u32, now: u64) -> bool {
    (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(many.into())
}

/// Makes a launch by `call` when it may be made, and measures it. `key` says what kind of launch it is, and `is_collective` whether it may wait for
/// other GPUs. `None` if it was not made, as nobody could have told what it took.
#[inline]
pub fn launch(
    engine: &impl Engine,
    meter: &Meter,
    (stream, handle): (&Stream, Handle),
    key: u64,
    is_collective: impl FnOnce() -> bool,
    call: impl FnOnce() -> Status,
) -> Option<Status> {
    let mut claim = stream.claim_quickly();
    if let Some(claim) = &mut claim
        && claim.quick().takes(key, || meter.account.costs)
    {
        let status = call();
        if status != SUCCESS {
            claim.quick().refused();
        }
        return Some(status);
    }
    let claim = claim.map(QuickClaim::whole);
    let Some(rate) = meter.account.rate() else { return Some(call()) };
    let mut launch = Launch::new(engine, meter, (stream, handle), claim, key, rate, is_collective);
    launch.begin(engine);
    if launch.unmeasured {
        return None;
    }
    let status = call();
    launch.end(engine, status == SUCCESS);
    Some(status)
}

/// A launch that is under way.
pub struct Launch<'a> {
    pub meter: &'a Meter,
    pub stream: &'a Stream,
    pub handle: Handle,
    pub claim: Option<Claim<'a>>,
    key: u64,
    pub kind: Kind,
    pub known: bool,
    pub cost: u64,
    pub began: u64,
    pub rate: Rate,
    /// The stream's host does not keep up with the GPU.
    pub slow: bool,
    /// The GPU waits for the stream's host most of the time.
    pub behind: bool,
    /// There is so much budget that nobody has to know soon what the launches take.
    pub spare: bool,
    /// When its stream runs out of work.
    pub idle_from: u64,
    /// It may be made only because it runs beside what is in flight in another stream.
    pub covered: bool,
    /// It goes ahead although there is no budget, and alone.
    pub on_credit: bool,
    /// It has waited for a launch of unknown cost to be measured.
    pub in_the_dark: bool,
    /// It may wait for other GPUs.
    pub collective: bool,
    /// There are no events to measure it by, and no memory for any.
    pub unmeasured: bool,
}

impl<'a> Launch<'a> {
    /// A launch that the program wants to make. `claim` is the right to launch into its stream, unless another thread has that.
    #[inline]
    pub fn new(
        engine: &impl Engine,
        meter: &'a Meter,
        (stream, handle): (&'a Stream, Handle),
        claim: Option<Claim<'a>>,
        key: u64,
        rate: Rate,
        is_collective: impl FnOnce() -> bool,
    ) -> Self {
        let costs = meter.account.costs;
        let kind = costs.kind(key);
        let known = costs.of(kind);
        if known.is_none() && is_collective() {
            costs.set_collective(kind, true);
        }
        let collective = costs.is_collective(kind);
        Self {
            meter,
            stream,
            handle,
            began: engine.about_now(),
            claim,
            key,
            kind,
            // What waits for others is measured when they have come, and nobody may wait for that: it counts as known, and a first one is
            // charged at most what an unknown one is taken to cost.
            known: known.is_some() || collective,
            cost: known.map_or(UNKNOWN, u64::from),
            rate,
            slow: false,
            behind: false,
            spare: false,
            idle_from: u64::MAX,
            covered: false,
            on_credit: false,
            in_the_dark: false,
            collective,
            unmeasured: false,
        }
    }

    /// Waits until it may be made, and prepares to measure it.
    #[inline]
    pub fn begin(&mut self, engine: &impl Engine) {
        if !self.is_one_more() {
            self.prepare(engine);
        }
    }

    /// Whether it goes into the open batch and nothing else has to be done, as with nearly all of them.
    #[inline]
    fn is_one_more(&mut self) -> bool {
        self.claim.as_mut().is_some_and(|claim| {
            let (batch, open) = claim.open();
            batch.count != 0
                && batch.expected < open.full
                && self.known
                && self.cost < BATCH
                && self.began < open.idle_from + GAP
                && self.began < open.closes_at
                && !batch.must_not_mix(self.kind, self.collective)
                && !open.interrupted
        })
    }

    #[cold]
    #[inline(never)]
    fn prepare(&mut self, engine: &impl Engine) {
        self.began = engine.now();
        let known = self.known;
        let shared = self.stream.shared.load(Relaxed);
        let Some(mut claim) = self.claim.take().or_else(|| if shared { self.claim_shared(engine) } else { None }) else {
            // Another thread launches into this stream right now. Its batch measures this launch too.
            if !self.known || self.stream.guests.load(Relaxed) + self.cost >= BATCH {
                _ = self.wait(engine);
            }
            return;
        };
        let account = self.meter.account;
        let (batch, open) = claim.open();
        open.interrupted |= shared;
        let paused = self.began >= open.idle_from + GAP;
        // Looked at before anything is waited for: afterwards the stream is idle because we waited.
        if batch.count != 0 || self.stream.guests.load(Relaxed) != 0 {
            let idle = has_paused(engine, self.meter, self.stream, &mut claim, self.began, || engine.is_idle(self.handle));
            // A long launch, or one of unknown length, gets a batch of its own.
            let apart = !self.known || self.cost >= BATCH || claim.open().0.must_not_mix(self.kind, self.collective);
            let open = claim.open().1;
            if idle || open.interrupted || apart || self.began >= open.closes_at {
                close(engine, self.meter, self.stream, self.handle, &mut claim, idle);
            }
        }
        let waking = &mut claim.open().1.waking;
        if paused {
            waking.pauses();
        } else {
            waking.goes_on(self.began);
        }
        if claim.open().0.count == 0 || self.stream.waiting() >= RING - 1 {
            let had = claim.open().1.had;
            self.slow = claim.open().1.slow;
            self.behind = claim.open().1.host.is_behind() && !self.meter.has_many_streams();
            self.idle_from = claim.open().1.idle_from;
            let goes_on =
                !shared && self.stream.waiting() < RING - 2 && (account.rounds.is_behind(had, self.cost) || self.is_covered(self.began));
            // Who goes on with the others was not asked what there is to spare.
            self.spare = goes_on && !self.covered && claim.open().1.spare && account.in_flight.load(Acquire) < BATCH_TO_SPARE;
            let came = self.began;
            // Held back with the others, if not in its own launch.
            let waited = (!goes_on && self.wait(engine)) || account.rounds.is_new(had);
            let (batch, open) = claim.open();
            if batch.count == 0 {
                (batch.covered, batch.behind) = (self.covered, self.behind);
            }
            let in_turns = account.gate.takes_turns();
            open.spare = self.spare && !in_turns;
            open.closes_at = self.began + if in_turns { OPEN_IN_TURN } else { OPEN };
            open.full = if self.on_credit {
                0
            } else if open.spare {
                BATCH_TO_SPARE / account.rounds.abreast()
            } else if self.spare || self.behind {
                // Who keeps the GPU waiting is late anyway: the fewer stops, the better.
                2 * BATCH
            } else {
                BATCH / account.rounds.abreast()
            };
            let nothing_runs = self.stream.waiting() == 0 || engine.is_idle(self.handle);
            if !nothing_runs {
                // What was launched last takes longer than expected: nobody is late.
                open.idle_from = open.idle_from.max(self.began);
            }
            let held = waited || self.in_the_dark;
            if !held && !open.interrupted {
                open.slow = nothing_runs && !paused;
                // After a wait there is nothing in the stream anyway, nor when a launch waited for the last one to be measured.
                if known && !open.has_waited && !paused {
                    open.host.comes(nothing_runs);
                }
            }
            open.has_waited = false;
            if waited {
                open.host.goes_on(self.began);
                open.waking.is_held(came, self.began);
            }
            // The pause belongs to nobody, or to us: what is new may have waited for the driver to load it, or for another stream's to be measured.
            let idle = (held || paused || !known) && nothing_runs;
            let begins = batch.count == 0 && (open.interrupted || idle);
            if batch.count == 0 && !(ready(engine, &mut batch.end) && (!begins || ready(engine, &mut batch.start))) {
                self.unmeasured = true;
                return;
            }
            if begins {
                if self.meter.account.in_flight.load(Acquire) == 0 {
                    self.meter.mark.store(self.began, Relaxed);
                }
                batch.fresh = engine.record(batch.start, self.handle);
                open.interrupted = !batch.fresh;
                open.idle_from = self.began + START;
                open.excuse = match (waited, open.slow) {
                    (false, _) => 0,
                    (true, false) => WAKING,
                    (true, true) => open.waking.loses(self.behind),
                };
                // Few at first: the program may pause after them, and then they are measured. Not if it was us who made it pause.
                (open.most, open.since_pause) = (if held && !shared { MOST as u32 } else { 1 }, 0);
            }
        }
        let (batch, open) = claim.open();
        if batch.count == 0 {
            batch.woken = self.known && open.excuse != 0 && !self.meter.has_many_streams();
        }
        self.claim = Some(claim);
    }

    /// Whether it is over before what runs in another stream.
    pub fn is_covered(&mut self, now: u64) -> bool {
        self.covered = self.known && self.meter.account.covers(self.idle_from.max(now).saturating_add(self.cost));
        self.covered
    }

    /// The right to launch into the place that several streams share. `None` if another thread has it for very long.
    fn claim_shared(&self, engine: &impl Engine) -> Option<Claim<'a>> {
        (0..LONG_CLAIM).find_map(|_| {
            let claim = self.stream.claim();
            if claim.is_none() {
                engine.sleep(SHORT_CLAIM);
            }
            claim
        })
    }

    /// Whether a call that took long did so as it lasted until its work was done, as with `CUDA_LAUNCH_BLOCKING`.
    fn has_blocked(&self, engine: &impl Engine) -> bool {
        engine.is_idle(self.handle)
    }

    /// After the driver's answer.
    #[inline]
    pub fn end(&mut self, engine: &impl Engine, launched: bool) {
        if !launched {
            return;
        }
        let Some(mut claim) = self.claim.take() else {
            self.stream.guests.fetch_add(self.cost, Relaxed);
            return;
        };
        let (batch, open) = claim.open();
        batch.add(self.kind);
        self.stream.handle.store(self.handle, Relaxed);
        self.stream.dirty.store(true, Relaxed);
        batch.expected += self.cost;
        batch.unknown |= !self.known;
        batch.collective |= self.collective;
        let rounds = &self.meter.account.rounds;
        if batch.count == 1 {
            rounds.join(&mut open.had);
        }
        open.had.nanos += self.cost;
        if batch.count == 1 && !batch.covered {
            rounds.reach(open.had);
        }
        let mut reached = self.began;
        if batch.woken {
            reached = engine.about_now();
            if reached.saturating_sub(self.began) > SLOW && self.has_blocked(engine) {
                reached = self.began;
            }
            let late = reached.saturating_sub(open.idle_from);
            let excused = late.min(open.excuse);
            open.excuse -= excused;
            (batch.late, batch.lagged) = (batch.late + excused, batch.lagged + late);
        }
        open.idle_from = open.idle_from.max(reached) + self.cost;
        if !self.known && batch.fresh && batch.count == 1 {
            let took = engine.now().saturating_sub(self.began);
            // The function was loaded first, and the stream was idle meanwhile.
            batch.loading = if took > SLOW && !self.has_blocked(engine) { took } else { 0 };
        }
        let most = if open.spare && batch.uniform && open.most == MOST as u32 { MOST_TO_SPARE } else { open.most };
        let by_chance = open.unseen && is_one_in(open.since_pause.saturating_add(batch.count).saturating_mul(UNSEEN), engine.about_now());
        if batch.count >= most || batch.expected >= open.full || !self.known || by_chance {
            open.since_pause = open.since_pause.saturating_add(batch.count);
            if !by_chance {
                open.most = (open.most * if open.spare && !open.unseen { GROWTH_TO_SPARE } else { GROWTH }).clamp(1, MOST as u32);
            }
            close(engine, self.meter, self.stream, self.handle, &mut claim, false);
        } else {
            (open.asked_at, open.unasked) = (reached, false);
            if !(open.unseen || batch.collective || self.stream.shared.load(Relaxed)) {
                let (launches, nanos) = (most - batch.count - 1, open.full - batch.expected);
                claim.quick().grant(self.key, (self.kind, self.cost), launches as usize, nanos);
            }
        }
    }
}
