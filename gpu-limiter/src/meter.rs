//! What the work of one context really took: the union, on the GPU's own clock, of its streams' measured batches.
//!
//! A batch lasts from its start (an event before it if its stream was idle, else the end of the batch before) to its end event. Work
//! of several streams that overlaps is counted once. Work that has begun and is not finished is charged as time goes by, so that
//! a kernel that never ends is paid for too; when it ends, the measured time replaces that. Of kernels that wait for other GPUs no
//! more is charged than they are known to take ([`super::collective`]).

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::budget::Rate;

use crate::account::Account;
use crate::engine::Engine;
use crate::engine::Handle;
use crate::idle_gaps::Gaps;
use crate::stream::{Claim, Stream};
use crate::timeline;
use crate::timeline::{Books, Head};

/// Streams of one context that can be told apart.
pub const STREAMS: usize = 256;
/// How often to look whether another thread's harvest is over.
const SPINS: u32 = 1_000;

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
    pub count: AtomicU32,
    /// What streams beyond those share.
    crowd: AtomicPtr<Stream>,
    books: UnsafeCell<Books>,
    /// Host time since when the context has had work in flight, or at which its busy time was last known; for charging early.
    pub mark: AtomicU64,
    pub side_by_side: AtomicBool,
    /// Counts harvested batches: whoever waits sees whether anything moves.
    pub harvested: AtomicU64,
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
                match timeline::head(engine, books, stream) {
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
}
