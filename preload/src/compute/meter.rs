//! What the work of one context really took: the union, on the GPU's own clock, of its streams' measured batches.
//!
//! A batch lasts from its start (an event before it if its stream was idle, else the end of the batch before) to its end event. Work
//! of several streams that overlaps is counted once. Work that has begun and is not finished is charged as time goes by, so that
//! a kernel that never ends is paid for too; when it ends, the measured time replaces that. Of kernels that wait for other GPUs no
//! more is charged than they are known to take ([`super::collective`]).

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use vgpu_region::budget::Rate;

use super::account::Account;
use super::engine::Engine;
use super::gaps::Gaps;
use super::heads::{self, Head};
use super::stream::{Claim, Stream};
use crate::cuda::Handle;

/// Streams of one context that can be told apart.
pub const STREAMS: usize = 256;
/// What the event that ends a batch adds to its time, in nanoseconds (H200, driver 580: 2.0 µs with kernels of 1 µs to 200 µs).
const EVENT_COST: u64 = 2_000;
/// What a pair of events around a batch adds in an idle stream (H200, driver 580: 3.4 µs).
const PAIR_COST: u64 = 3_400;
/// What we take of the host's time for each batch, in nanoseconds, while the GPU has nothing left to do (H200 and H100, host-bound PyTorch
/// loops), and the part of a batch that this is at most. It is not charged where the GPU waits for the host.
const OWN_BATCH: u64 = 5_000;
const OWN_PART: u64 = 32;
/// And for each launch: one part of so many of the time from one to the next, as the more the program does in between, the less of what we
/// need is left in the caches (H200's host: 0.2 µs in 15 and 0.7 in 28); at least and at most so many nanoseconds.
const OWN_LAUNCH_PART: u64 = 50;
const OWN_LAUNCH: (u64, u64) = (200, 700);
/// How often to look whether another thread's harvest is over.
const SPINS: u32 = 1_000;
/// So many batches in a row from one stream mean that it is the only one.
const MANY: u32 = 16;
/// Work is charged before it has ended once it has run for so many nanoseconds.
const EARLY: u64 = 2_000_000;

/// A context's meter.
#[derive(Debug)]
pub struct Meter {
    /// The driver's number for the context; the context itself if the driver has none.
    pub context: AtomicU64,
    /// The account that pays.
    pub account: &'static Account,
    /// Set when the context goes: its events must not be touched any more.
    pub gone: AtomicBool,
    harvesting: AtomicBool,
    streams: [AtomicPtr<Stream>; STREAMS],
    count: AtomicU32,
    /// What streams beyond those share.
    crowd: AtomicPtr<Stream>,
    books: UnsafeCell<Books>,
    /// Host time since when the context has had work in flight, or at which its busy time was last known; for charging early.
    pub mark: AtomicU64,
    side_by_side: AtomicBool,
    /// Counts harvested batches: whoever waits sees whether anything moves.
    pub harvested: AtomicU64,
}

/// The harvester's own.
#[derive(Debug)]
pub(super) struct Books {
    /// A finished event whose place on the time line is known; every other one is placed by its distance from it.
    pub anchor: Handle,
    pub anchor_at: u64,
    pub busy_until: u64,
    /// Where nothing was charged before that.
    gaps: Gaps,
    /// Which harvest this is, from 1.
    pub harvest: u64,
    /// Charged early and not yet seen in measured time.
    early: u64,
    /// The stream of the last batch, and how many were from it without another between.
    last: *const Stream,
    alone: u32,
}

// SAFETY: `books` is only touched by the holder of `harvesting`; the rest is atomics.
unsafe impl Sync for Meter {}
// SAFETY: nothing in it belongs to a thread; the handles are the driver's, good in every thread.
unsafe impl Send for Meter {}

struct Harvest<'a>(&'a Meter);

impl Drop for Harvest<'_> {
    fn drop(&mut self) {
        self.0.harvesting.store(false, Release);
    }
}

impl Meter {
    /// A meter of a context, paid from `account`.
    pub fn new(context: u64, account: &'static Account) -> Self {
        let books = Books {
            anchor: core::ptr::null_mut(),
            anchor_at: 0,
            busy_until: 0,
            gaps: Gaps::new(),
            harvest: 0,
            early: 0,
            last: core::ptr::null(),
            alone: 0,
        };
        Self {
            context: AtomicU64::new(context),
            account,
            gone: AtomicBool::new(false),
            harvesting: AtomicBool::new(false),
            streams: [const { AtomicPtr::new(core::ptr::null_mut()) }; STREAMS],
            count: AtomicU32::new(0),
            crowd: AtomicPtr::new(core::ptr::null_mut()),
            books: UnsafeCell::new(books),
            mark: AtomicU64::new(0),
            side_by_side: AtomicBool::new(false),
            harvested: AtomicU64::new(0),
        }
    }

    /// Ends the open batches of all streams, or those for which `which` says so. Done before a wait: what they hold will be finished
    /// after it, and nobody would have seen when. The streams are not ours to use, so each is claimed, and a program that destroys one waits for the claim.
    pub fn end_batches(&self, engine: &impl Engine, end: impl Fn(&Stream, Handle, &mut Claim<'_>)) {
        // Another thread's harvest takes a microsecond or two.
        if (0..SPINS).all(|_| {
            self.harvesting.swap(true, Acquire) && {
                core::hint::spin_loop();
                true
            }
        }) {
            return;
        }
        let _harvest = Harvest(self);
        if self.gone.load(Acquire) {
            return;
        }
        for stream in self.streams().filter(|stream| stream.dirty.load(Relaxed)) {
            if let Some(mut claim) = stream.visit()
                && !stream.retired.load(Acquire)
                && engine.reaches(stream.handle.load(Relaxed))
            {
                end(stream, stream.handle.load(Relaxed), &mut claim);
            }
        }
    }

    /// The streams, those that are gone included.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        let places = self.streams.iter().take(self.count.load(Acquire) as usize).chain([&self.crowd]);
        // SAFETY: a stream's memory is never given back; a place is filled before `count` passes it.
        places.filter_map(|place| unsafe { place.load(Acquire).as_ref() })
    }

    /// Whether more than one stream was at work lately.
    pub fn has_many_streams(&self) -> bool {
        self.side_by_side.load(Relaxed)
    }

    /// The context's handle.
    pub fn context(&self) -> Handle {
        self.context.load(Relaxed) as Handle
    }

    /// The place for all streams that find none of their own: each launch into it is measured by itself. `None` if there is no memory.
    pub fn crowd(&self, make: impl FnOnce() -> *mut Stream) -> Option<&Stream> {
        if self.crowd.load(Acquire).is_null() {
            let made = make();
            // SAFETY: fresh memory of the right size, zero, or null.
            let stream = unsafe { made.as_ref() }?;
            // No stream has this number.
            stream.id.store(1, Relaxed);
            stream.shared.store(true, Relaxed);
            _ = self.crowd.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire);
        }
        // SAFETY: a stream's memory is never given back.
        unsafe { self.crowd.load(Acquire).as_ref() }
    }

    /// A place for the stream with this number: its own, one whose stream is gone, or a new one. `None` if all are taken.
    pub fn adopt(&self, id: u64, make: impl FnOnce() -> *mut Stream) -> Option<&Stream> {
        let own = |stream: &&Stream| stream.id.load(Acquire) == id && !stream.retired.load(Acquire);
        if let Some(stream) = self.streams().find(own) {
            return Some(stream);
        }
        for stream in self.streams() {
            let free = stream.retired.load(Acquire) && stream.waiting() == 0;
            if let Some(mut claim) = free.then(|| stream.claim()).flatten() {
                if !stream.retired.swap(false, AcqRel) {
                    continue;
                }
                stream.id.store(id, Release);
                let (batch, open) = claim.open();
                batch.clear();
                (open.interrupted, open.idle_from) = (true, 0);
                stream.dirty.store(false, Relaxed);
                stream.guests.store(0, Relaxed);
                drop(claim);
                return Some(stream);
            }
        }
        if self.count.load(Acquire) as usize >= STREAMS {
            return None;
        }
        let made = make();
        // SAFETY: fresh memory of the right size, zero, or null.
        let stream = unsafe { made.as_ref() }?;
        stream.id.store(id, Relaxed);
        stream.claim()?.open().1.interrupted = true;
        loop {
            let place = self.count.load(Acquire);
            let taken = self.streams.get(place as usize)?.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire);
            // Another thread that was quicker may not have counted its stream yet: whoever comes next does.
            _ = self.count.compare_exchange(place, place + 1, AcqRel, Acquire);
            if taken.is_ok() {
                break;
            }
        }
        Some(stream)
    }

    /// Waits for a harvester to leave and keeps others out, for good. Called before the context is destroyed. Charges what is unfinished
    /// as expected, and gives that, in nanoseconds.
    pub fn close(&self, engine: &impl Engine) -> u64 {
        self.gone.store(true, Release);
        // A harvester only asks the driver questions that it answers at once.
        for _ in 0..10_000 {
            if !self.harvesting.swap(true, Acquire) {
                break;
            }
            engine.sleep(10_000);
        }
        let mut unfinished = 0;
        for stream in self.streams() {
            // SAFETY: we are the harvester; nobody launches into a context that is being destroyed.
            while let Some(batch) = unsafe { stream.oldest() } {
                // What it took will never be known.
                unfinished += batch.expected;
                if let Some(rate) = self.account.rate() {
                    self.account.charge(batch.expected as i64, rate);
                }
                self.account.arrived(batch);
                // SAFETY: as above.
                unsafe { stream.done() };
            }
        }
        unfinished
    }

    /// Charges everything that has finished since, and what has been running for long. Does nothing while another thread does it.
    pub fn harvest(&self, engine: &impl Engine, rate: Rate) {
        if self.harvesting.swap(true, Acquire) {
            return;
        }
        let _harvest = Harvest(self);
        if self.gone.load(Acquire) {
            return;
        }
        // SAFETY: we are the harvester.
        let books = unsafe { &mut *self.books.get() };
        books.harvest += 1;
        let running = loop {
            let mut first: Option<(&Stream, u64, u64)> = None;
            let (mut running, mut since) = (false, u64::MAX);
            for stream in self.streams() {
                match heads::head(engine, books, stream) {
                    None => {}
                    Some(Head::Running { since: begun }) => {
                        // What waits for something else (a copy, the host) has not begun.
                        running |= begun.is_some();
                        since = since.min(begun.unwrap_or(u64::MAX));
                    }
                    Some(Head::Finished { start, end }) if first.is_none_or(|(_, earliest, _)| start < earliest) => {
                        first = Some((stream, start, end));
                    }
                    Some(Head::Finished { .. }) => {}
                }
            }
            let Some((stream, start, end)) = first else { break running };
            self.settle(engine, books, rate, stream, (start.min(since), start, end));
        };
        self.charge_early(engine, books, rate, running);
    }

    /// Charges a finished batch: what of the time line from `from` to its end has not been charged yet.
    fn settle(&self, engine: &impl Engine, books: &mut Books, rate: Rate, stream: &Stream, (from, start, end): (u64, u64, u64)) {
        // SAFETY: we are the harvester, and `head` has just seen this batch.
        let Some(batch) = (unsafe { stream.oldest() }) else { return };
        let length = end - start;
        let by_us = if batch.behind { taken_of_host(length, batch.count) } else { 0 };
        let overhead = if batch.guessed { 0 } else { batch.late + by_us + if batch.fresh { PAIR_COST } else { EVENT_COST } };
        books.alone = if core::ptr::eq(books.last, stream) { books.alone.saturating_add(1) } else { 0 };
        books.last = stream;
        self.side_by_side.store(books.alone <= MANY && self.count.load(Relaxed) > 1, Relaxed);
        // The driver shares the GPU between this work and another container's: what is known of it counts, not how long it lay there.
        let crowded = self.account.gate.is_crowded() && !batch.unknown && length > batch.expected + batch.expected / 2;
        let steady = !crowded && batch.lagged < length / 16;
        // Beside other streams' work the overhead holds up one of them; the events of who had none in flight have not held up any.
        let abreast = self.account.rounds.abreast();
        let begins = from.max(books.busy_until);
        // While this was in its stream, others' work may have come and gone.
        let is_sure = !batch.guessed && !batch.collective && start < books.busy_until;
        let filled = if is_sure { books.gaps.fill(start) } else { 0 };
        let news = end.saturating_sub(begins) + filled;
        let is_alone = !batch.guessed && news >= length;
        let own = match batch.guessed {
            // Nobody saw when it ended: it is charged as expected, and leaves no mark on the time line, where it could be wrong.
            true => batch.expected,
            false if is_alone => news.saturating_sub(overhead),
            false if abreast > 1 => news.saturating_sub(if batch.fresh { batch.late } else { overhead } / abreast),
            false => news,
        };
        let own = if crowded || batch.collective { own.min(batch.expected) } else { own };
        self.pay(books, rate, own);
        // What ran beside a kernel that waited for other GPUs is charged, but for as much as that was.
        let charged_to = if batch.collective { end.min(begins + own) } else { end };
        let before = books.busy_until;
        books.busy_until = before.max(charged_to);
        if before != 0 {
            books.gaps.leave(before, if batch.guessed { end } else { begins.min(charged_to) });
        }
        if is_alone && batch.fresh {
            // Its own events, or its host's being late, are no pause of who worked meanwhile.
            let spared = news.saturating_sub(own).min(charged_to.saturating_sub(begins));
            books.gaps.leave(begins, begins + spared);
        }
        stream.last_end.store(end, Relaxed);
        if !batch.guessed {
            // A batch that others cover says little of what its launches cost: no less than its part of all that run side by side. Nor more
            // than it lay there, though what others have begun and not finished is charged with it.
            let streams = u64::from(self.count.load(Relaxed)).clamp(1, 16);
            let alone = length.saturating_sub(overhead);
            let seen = own.clamp(alone / streams, alone);
            // Of a uniform batch one launch stands for all.
            let (each, noted) = if batch.uniform { (u64::from(batch.count.max(1)), 1) } else { (1, batch.count) };
            match batch.kinds.get(..noted as usize) {
                Some(&[kind]) if batch.collective => self.account.costs.learn_least(kind, alone / each),
                // What it added to the time line, not how long it lay there: four streams' launches side by side take a quarter each.
                // A pause that counts as used is none of its cost, or the next one would look shorter than it is.
                Some(kinds) if steady && !batch.collective && (!batch.at_most || seen < batch.expected) => {
                    self.account.costs.learn(kinds, seen / each)
                }
                _ => {}
            }
            // The anchor is an event that nobody will record again: the batch gets the old one for its next round.
            (books.anchor, books.anchor_at, batch.end) = (batch.end, end, books.anchor);
        }
        self.account.arrived(batch);
        // SAFETY: as above.
        unsafe { stream.done() };
        self.mark.store(engine.now(), Relaxed);
        self.harvested.fetch_add(1, Relaxed);
    }

    fn pay(&self, books: &mut Books, rate: Rate, amount: u64) {
        let paid = amount.min(books.early);
        books.early -= paid;
        if amount > paid {
            self.account.charge((amount - paid) as i64, rate);
        }
    }

    fn charge_early(&self, engine: &impl Engine, books: &mut Books, rate: Rate, running: bool) {
        let due = if running { engine.now().saturating_sub(self.mark.load(Relaxed)) } else { 0 };
        if due > books.early && due > EARLY {
            self.account.charge((due - books.early) as i64, rate);
            books.early = due;
        } else if !running && books.early != 0 {
            self.account.charge(-(books.early as i64), rate);
            books.early = 0;
        }
    }
}

/// What we took of the host's time in a batch of this length and so many launches, in nanoseconds.
fn taken_of_host(length: u64, count: u32) -> u64 {
    let count = u64::from(count.max(1));
    let (least, most) = OWN_LAUNCH;
    (OWN_BATCH + count * (length / count / OWN_LAUNCH_PART).clamp(least, most)).min(length / OWN_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What toggling the limit in one process showed on an H200, in batches of four steps of an MLP and one of a training step.
    #[test]
    fn what_we_take_of_a_host_is_what_was_seen() {
        for (name, length, count, seen) in [("MLP", 1_404_000, 96, 26_000_u64), ("training step", 3_375_000, 120, 82_000)] {
            let taken = taken_of_host(length, count);
            assert!(taken.abs_diff(seen) < length / 150, "{name}: {taken} of {length} ns, seen {seen}");
        }
        assert_eq!(taken_of_host(2_000_000, 0), 5_700, "a batch that holds what others launched");
        assert_eq!(taken_of_host(32_000, 100), 1_000, "a small part at most");
        assert_eq!(taken_of_host(0, 1), 0);
    }
}
