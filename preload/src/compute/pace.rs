//! Around every launch: into which batch it goes, and when it may.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use vgpu_region::budget::Rate;
use vgpu_region::limits::LogLevel;

use super::account::Verdict;
use super::cost::Kind;
use super::engine::Engine;
use super::meter::Meter;
use super::stream::{Batch, Claim, MOST, Open, RING, Stream};
use crate::cuda::Handle;
use crate::log::{self, Seldom};

/// A batch is closed when it is expected to take so many nanoseconds: long enough that its event (2 µs) does not matter, short
/// enough that what it took is known soon.
const BATCH: u64 = 800_000;
/// Most launches of one kind in a batch. An event, and the accounts after it, then come with fewer than one launch in a hundred.
const MOST_ALIKE: u32 = 256;
/// A pause in a stream that is shorter than this counts as used: nobody else can have the GPU for less, since passing it from one
/// process to another and back takes twice 100 µs, and twice as much again to wake them. So a program that keeps the GPU waiting for a
/// moment again and again gets its share of what it would get done alone.
const GAP: u64 = 500_000;
/// How much time a host may lose in a burst, until it is as quick as before its nap, without being charged for it. The GPU had nothing
/// to do in that time. In nanoseconds.
const WAKING: u64 = 200_000;
/// The same for a host that does not keep up with the GPU.
const WAKING_SLOW: u64 = 400_000;
/// From the start event of a batch to its first launch, in nanoseconds.
const START: u64 = 3_400;
/// What a launch is taken to cost before one like it was measured, in nanoseconds.
const UNKNOWN: u64 = 200_000;
/// Who had to wait goes on when there is so much budget, in nanoseconds: each burst costs two naps, and its ends are known to a few
/// microseconds only, so it must not be too short; nor so long that a tenth of a second shows it.
const BURST: i64 = 2_000_000;
/// The same for launches that the host makes hardly faster than the GPU runs them, and for streams side by side.
const BURST_OF_SHORT: i64 = 3_000_000;
const SHORT_LAUNCH: u64 = 50_000;
/// The same for launches each of which makes a burst.
const BURST_OF_LONG: i64 = 500_000;
const LONG_LAUNCH: u64 = 1_000_000;
/// The same for a host that does not keep up with the GPU: it takes a millisecond or two until it is as quick as before its nap.
const BURST_OF_SLOW: i64 = 8_000_000;
/// Shortest and longest waits before looking again, in nanoseconds. A wait costs about 6 µs of CPU time; a limit that is raised is
/// seen after the longest.
const SHORT: u64 = 500_000;
const LONG: u64 = 6_000_000;
/// The shortest wait for the last launches of a turn.
const DRAIN: u64 = 60_000;
/// They count as finished so many nanoseconds before they should be: a nap is late by as much, and the next container needs longer than
/// that to begin.
const HANDOVER: u64 = 50_000;
/// With more than so many nanoseconds in flight, it is looked at in between: it may take less time than expected.
const FAR: u64 = 5_000_000;
/// How long to wait for another process of the container.
const OTHER: u64 = 300_000;
/// First wait for a launch of unknown cost to be measured; each further one is twice as long.
const PEEK: u64 = 20_000;
/// What is in flight may wait for this very launch (kernels that wait for each other, or for the host), and would then never end.
/// After so many nanoseconds in which nothing at all has finished, one launch goes ahead on credit: soon into a stream with nothing
/// in flight, late into one where it would queue behind what does not end.
const STUCK: u64 = 250_000_000;
const STUCK_BEHIND: u64 = 10_000_000_000;
/// Who waited for an event does the accounts if they were not done for so many nanoseconds.
const LATELY: u64 = 1_000_000;
/// A launch that takes the host longer than this did something else first, such as loading the function.
const SLOW: u64 = 100_000;

static HELD: Seldom = Seldom::new();

/// A launch that is under way.
pub struct Launch<'a> {
    meter: &'a Meter,
    stream: &'a Stream,
    handle: Handle,
    claim: Option<Claim<'a>>,
    kind: Kind,
    known: bool,
    cost: u64,
    began: u64,
    rate: Rate,
    /// The stream's host does not keep up with the GPU.
    slow: bool,
    /// There is so much budget that nobody has to know soon what the launches take.
    spare: bool,
}

impl<'a> Launch<'a> {
    /// Waits until the launch may be made, and prepares to measure it.
    #[inline]
    pub fn begin(engine: &impl Engine, meter: &'a Meter, stream: &'a Stream, handle: Handle, key: u64, rate: Rate) -> Self {
        let kind = meter.account.costs.kind(key);
        let known = meter.account.costs.of(kind);
        let cost = known.map_or(UNKNOWN, u64::from);
        let began = engine.about_now();
        let mut launch = Self {
            meter,
            stream,
            handle,
            claim: stream.claim(),
            kind,
            known: known.is_some(),
            cost,
            began,
            rate,
            slow: false,
            spare: false,
        };
        let quick = launch.claim.as_mut().is_some_and(|claim| {
            let (batch, open) = claim.open();
            batch.count != 0 && launch.known && cost < BATCH && began < open.idle_from + GAP && !open.interrupted
        });
        if !quick {
            launch.prepare(engine);
        }
        launch
    }

    #[cold]
    #[inline(never)]
    fn prepare(&mut self, engine: &impl Engine) {
        self.began = engine.now();
        let Some(mut claim) = self.claim.take() else {
            // Another thread launches into this stream right now. Its batch measures this launch too.
            if !self.known || self.stream.guests.load(Relaxed) + self.cost >= BATCH {
                _ = self.wait(engine);
            }
            return;
        };
        let account = self.meter.account;
        let (batch, open) = claim.open();
        let paused = self.began >= open.idle_from + GAP;
        // Looked at before anything is waited for: afterwards the stream is idle because we waited.
        if batch.count != 0 || self.stream.guests.load(Relaxed) != 0 {
            let idle = paused && engine.is_idle(self.handle);
            // A long launch, or one of unknown length, gets a batch of its own.
            if idle || open.interrupted || !self.known || self.cost >= BATCH {
                close(engine, self.meter, self.stream, self.handle, &mut claim, idle);
            }
        }
        if claim.open().0.count == 0 || self.stream.waiting() >= RING - 1 {
            let had = claim.open().1.had;
            self.slow = claim.open().1.slow;
            // Held back with the others, if not in its own launch.
            let waited = (!account.rounds.is_behind(had, self.cost) && self.wait(engine)) || account.rounds.is_new(had);
            let (batch, open) = claim.open();
            open.full = if self.spare { 2 * BATCH } else { BATCH / account.rounds.abreast() };
            let nothing_runs = self.stream.waiting() == 0 || engine.is_idle(self.handle);
            if !waited && !open.interrupted {
                open.slow = nothing_runs && !paused;
            }
            // The pause belongs to nobody, or to us.
            let idle = (waited || paused) && nothing_runs;
            if batch.count == 0 && (open.interrupted || idle) && ready(engine, &mut batch.start) {
                if self.meter.account.in_flight.load(Acquire) == 0 {
                    self.meter.mark.store(self.began, Relaxed);
                }
                batch.fresh = engine.record(batch.start, self.handle);
                open.interrupted = false;
                open.idle_from = self.began + START;
                open.excuse = match (waited, open.slow) {
                    (false, _) => 0,
                    (true, false) => WAKING,
                    (true, true) => WAKING_SLOW,
                };
                // Few at first: the program may pause after them, and then they are measured. Not if it was us who made it pause.
                open.most = if waited { MOST as u32 } else { 1 };
            }
        }
        let (batch, open) = claim.open();
        if batch.count == 0 {
            batch.woken = self.known && open.excuse != 0 && !self.meter.has_many_streams();
        }
        self.claim = Some(claim);
    }

    /// Waits until the budget allows the launch. Whether it had to.
    fn wait(&mut self, engine: &impl Engine) -> bool {
        let began = self.began;
        let account = self.meter.account;
        let (mut least, mut peek, mut waited, mut closed) = (0, PEEK, false, false);
        let mut moved = (self.meter.harvested.load(Relaxed), began);
        loop {
            self.meter.harvest(engine, self.rate);
            let now = engine.now();
            self.began = now;
            // The limit may have been lifted meanwhile.
            let Some(rate) = account.rate() else { break };
            self.rate = rate;
            let handed = account.budget.handed.load(Acquire);
            let in_flight = account.in_flight.load(Acquire);
            let verdict = account.verdict(now, self.cost, least, rate);
            if account.has_handed() {
                engine.wake(&account.budget.handed);
            }
            let nap = match verdict {
                Verdict::Go | Verdict::Spare if !self.known && account.is_in_the_dark() => {
                    peek = (peek * 2).min(SHORT);
                    peek / 2
                }
                Verdict::Go | Verdict::Spare if self.stream.waiting() < RING - 2 => {
                    self.spare = verdict == Verdict::Spare && self.known;
                    break;
                }
                Verdict::Go | Verdict::Spare => SHORT,
                Verdict::Other => {
                    engine.wait_for_change(&account.budget.handed, handed, 3 * OTHER);
                    continue;
                }
                Verdict::Yield if in_flight != 0 => OTHER / 2,
                Verdict::Yield => OTHER,
                Verdict::Closed if !closed => {
                    self.end_batches(engine);
                    closed = true;
                    continue;
                }
                Verdict::Closed => match self.until_drained(engine, now, in_flight) {
                    Some(nap) => nap,
                    None => continue,
                },
                // What is in flight may turn out cheaper than expected; what is owed cannot.
                Verdict::Wait(time) => {
                    least = if account.gate.takes_turns() {
                        BURST_OF_LONG
                    } else if self.slow {
                        BURST_OF_SLOW
                    } else if self.cost < SHORT_LAUNCH || self.meter.has_many_streams() {
                        BURST_OF_SHORT
                    } else if self.cost < LONG_LAUNCH {
                        BURST
                    } else {
                        BURST_OF_LONG
                    };
                    if !waited {
                        self.end_batches(engine);
                        waited = true;
                        continue;
                    }
                    let nap = time.clamp(SHORT, if in_flight > FAR { 2 * SHORT } else { LONG });
                    match account.gate.turn() {
                        Some(turn) if account.gate.takes_turns() => {
                            engine.wait_for_change(&turn.word, account.gate.word(), nap.min(2 * SHORT));
                            0
                        }
                        _ => nap,
                    }
                }
            };
            let harvested = self.meter.harvested.load(Relaxed);
            if harvested != moved.0 || in_flight == 0 {
                moved = (harvested, now);
            } else if now.saturating_sub(moved.1) > if self.stream.waiting() == 0 { STUCK } else { STUCK_BEHIND } {
                break;
            }
            if nap != 0 {
                engine.sleep(nap);
            }
        }
        if waited {
            account.rounds.begin(self.began);
            account.budget.waited.fetch_add(self.began.saturating_sub(began), Relaxed);
        }
        if waited && HELD.now() {
            let (percent, millis) = (self.rate.percent(), self.began.saturating_sub(began) / 1_000_000);
            log::line(
                LogLevel::Info,
                format_args!("launches wait: the container has {percent}% of the GPU's time; the last waited {millis} ms"),
            );
        }
        if waited || closed {
            use vgpu_region::trace::Kind::{Budget, Turn};
            let kind = if closed { Turn } else { Budget };
            crate::trace::span(kind, self.handle as u64, began, self.began, self.cost);
        }
        waited || closed
    }

    /// The turn is over, or full: how long to sleep until it makes sense to look again. `None` if that is done.
    fn until_drained(&self, engine: &impl Engine, now: u64, in_flight: u64) -> Option<u64> {
        let account = self.meter.account;
        let turn = account.gate.turn()?;
        let (word, is_over) = (account.gate.word(), account.gate.is_over());
        let left = in_flight.saturating_sub(now.saturating_sub(self.meter.mark.load(Relaxed)));
        if is_over && left > HANDOVER {
            // What finished last was seen late by up to a nap, so it may well be less.
            return Some(left.saturating_sub(2 * SHORT).clamp(DRAIN, 2 * SHORT));
        }
        if is_over {
            account.budget.drained.store(u64::from(word), Relaxed);
        }
        // What is in flight fills the turn; when that is over, it is told at once.
        let most = match in_flight {
            0 => LONG,
            _ if is_over => SHORT,
            _ => (in_flight / 4).clamp(2 * DRAIN, 2 * SHORT),
        };
        engine.wait_for_change(&turn.word, word, most);
        None
    }

    fn end_batches(&self, engine: &impl Engine) {
        self.meter.end_batches(engine, |stream, handle, claim| {
            if claim.open().0.count != 0 {
                close(engine, self.meter, stream, handle, claim, false);
            }
        });
    }

    /// After the driver's answer.
    #[inline]
    pub fn end(mut self, engine: &impl Engine, launched: bool) {
        if !launched {
            return;
        }
        let Some(mut claim) = self.claim.take() else {
            self.stream.guests.fetch_add(self.cost, Relaxed);
            return;
        };
        let (batch, open) = claim.open();
        batch.uniform = batch.count == 0 || batch.uniform && batch.kinds.first() == Some(&self.kind);
        if let Some(place) = batch.kinds.get_mut(batch.count as usize) {
            *place = self.kind;
        }
        batch.count += 1;
        self.stream.handle.store(self.handle, Relaxed);
        self.stream.dirty.store(true, Relaxed);
        batch.expected += self.cost;
        batch.unknown |= !self.known;
        let rounds = &self.meter.account.rounds;
        if batch.count == 1 {
            rounds.join(&mut open.had);
        }
        open.had.nanos += self.cost;
        if batch.count == 1 {
            rounds.reach(open.had);
        }
        let mut reached = self.began;
        if batch.woken {
            reached = engine.about_now();
            let late = reached.saturating_sub(open.idle_from);
            let excused = late.min(open.excuse);
            open.excuse -= excused;
            (batch.late, batch.lagged) = (batch.late + excused, batch.lagged + late);
        }
        open.idle_from = open.idle_from.max(reached) + self.cost;
        if !self.known && batch.fresh && batch.count == 1 {
            let took = engine.now().saturating_sub(self.began);
            // The function was loaded first, and the stream was idle meanwhile.
            batch.late = if took > SLOW { took } else { 0 };
        }
        // Batches of one kind may be longer: there is nothing to note of each launch.
        let full = batch.count >= open.most && (!batch.uniform || batch.count >= MOST_ALIKE || open.most < MOST as u32);
        if full || batch.expected >= open.full || !self.known {
            open.most = (open.most * 2).clamp(1, MOST as u32);
            close(engine, self.meter, self.stream, self.handle, &mut claim, false);
        }
    }
}

/// Closes a stream's batch because something else follows in it: a copy, a wait for another stream, a host function. What that
/// takes is not the kernels' time.
pub fn interrupt(engine: &impl Engine, meter: &Meter, stream: &Stream, handle: Handle) {
    let Some(mut claim) = stream.claim() else { return };
    let (batch, open) = claim.open();
    if open.interrupted {
        return;
    }
    open.interrupted = true;
    if batch.count != 0 {
        close(engine, meter, stream, handle, &mut claim, false);
    }
}

/// The program is about to wait for all that is in these streams: it is measured up to here, and not up to when somebody comes back.
pub fn before_wait<'a>(engine: &impl Engine, meter: &Meter, streams: impl Iterator<Item = &'a Stream>) {
    for stream in streams {
        if !stream.dirty.load(Relaxed) && stream.waiting() == 0 {
            continue;
        }
        if let Some(mut claim) = stream.visit() {
            let handle = stream.handle.load(Relaxed);
            if claim.open().0.count != 0 && !stream.retired.load(Acquire) && engine.reaches(handle) {
                close(engine, meter, stream, handle, &mut claim, false);
            }
            stream.awaited.store(true, Relaxed);
        }
    }
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
            // It is awake by itself.
            open.excuse = if open.slow { open.excuse } else { 0 };
        }
    }
}

fn ready(engine: &impl Engine, event: &mut Handle) -> bool {
    if event.is_null() {
        *event = engine.create().unwrap_or(core::ptr::null_mut());
    }
    !event.is_null()
}

/// Ends the open batch: with an event, or, if the stream has been idle since some time nobody saw, by guess. With no place for it,
/// it stays open.
fn close(engine: &impl Engine, meter: &Meter, stream: &Stream, handle: Handle, claim: &mut Claim<'_>, guess: bool) {
    if stream.waiting() >= RING - 1 {
        return;
    }
    let (batch, open): (&mut Batch, &mut Open) = claim.open();
    meter.account.rounds.reach(open.had);
    let guests = stream.guests.swap(0, Relaxed);
    if guests != 0 {
        // Who else launched is not known: nothing can be learned from such a batch.
        batch.expected += guests;
        (batch.count, batch.uniform) = (MOST as u32 + 1, false);
    }
    batch.guessed = guess || !(ready(engine, &mut batch.end) && engine.record(batch.end, handle));
    if batch.guessed {
        // The next ones are measured soon enough.
        open.most = 1;
    }
    meter.account.departed(batch);
    stream.dirty.store(false, Relaxed);
    claim.close();
}
