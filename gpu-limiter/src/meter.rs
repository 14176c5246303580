//! Measures the GPU time of one context: the union, on the GPU's clock, of its streams' batches.
//!
//! A batch lasts from its start (an event if its stream was idle, else the end of the previous batch) to its end event. Work of several
//! streams that overlaps is counted once. Running work is charged as time passes, so that a kernel that never ends is paid for too; its
//! measured time replaces that when it ends. Kernels that wait for other GPUs are charged at most their known cost
//! ([`crate::cost_model::CostModel::learn_collective`]).

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::budget::Rate;

use crate::account::Account;
use crate::engine::{Engine, Handle};
use crate::stream::{SPINS, Stream, StreamGuard};
use crate::timeline::{BatchProgress, Timeline};
use crate::tuning::MIN_PAUSE_NS;

/// Most streams of one context that are measured separately.
pub const MAX_STREAMS: usize = 256;

/// The meter of one context.
#[derive(Debug)]
pub struct Meter {
    /// The context.
    pub context: Handle,
    /// Account that is charged.
    pub account: &'static Account,
    /// Set when the context is destroyed: its events must not be used any more.
    is_closed: AtomicBool,
    is_harvesting: AtomicBool,
    streams: [AtomicPtr<Stream>; MAX_STREAMS],
    pub(crate) stream_count: AtomicU32,
    /// Stream shared by all streams beyond [`MAX_STREAMS`].
    overflow_stream: AtomicPtr<Stream>,
    timeline: UnsafeCell<Timeline>,
    /// Host time up to which the context's GPU time is known, in nanoseconds: the last harvest of a batch, or the start of the work in flight
    /// if that is later. Running work is charged from here on.
    pub(crate) known_until: AtomicU64,
    /// More than one stream had batches lately.
    pub(crate) has_concurrent_streams: AtomicBool,
    /// Number of harvested batches. A waiting launch sees whether work finishes.
    pub(crate) harvested_batches: AtomicU64,
}

// SAFETY: `timeline` is only used by the thread that set `is_harvesting`; the rest is atomics.
unsafe impl Sync for Meter {}

// SAFETY: nothing in it belongs to a thread; the driver's handles are valid in every thread.
unsafe impl Send for Meter {}

struct Harvest<'a>(&'a Meter);

impl Drop for Harvest<'_> {
    fn drop(&mut self) {
        self.0.is_harvesting.store(false, Release);
    }
}

impl Meter {
    /// Returns a meter of the context with this handle, which charges `account`.
    pub fn new(context: u64, account: &'static Account) -> Self {
        Self {
            context: context as Handle,
            account,
            is_closed: AtomicBool::new(false),
            is_harvesting: AtomicBool::new(false),
            streams: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_STREAMS],
            stream_count: AtomicU32::new(0),
            overflow_stream: AtomicPtr::new(core::ptr::null_mut()),
            timeline: UnsafeCell::new(Timeline::new()),
            known_until: AtomicU64::new(0),
            has_concurrent_streams: AtomicBool::new(false),
            harvested_batches: AtomicU64::new(0),
        }
    }

    /// Returns true once the meter is closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire)
    }

    /// Returns true if this is the open meter of the context.
    pub fn measures(&self, context: Handle) -> bool {
        self.context == context && !self.is_closed()
    }

    /// Calls `close` for all streams with an open batch. Done before a wait: the batches will be finished after it, and nothing would show when.
    /// The streams may be in use, so each is locked first; a program that destroys one waits for the lock.
    pub(crate) fn for_each_open_batch(&self, engine: &impl Engine, close: impl Fn(&Stream, Handle, &mut StreamGuard<'_>)) {
        // Another thread's harvest takes one or two microseconds.
        if (0..SPINS).all(|_| {
            self.is_harvesting.swap(true, Acquire) && {
                core::hint::spin_loop();
                true
            }
        }) {
            return;
        }
        let _harvest = Harvest(self);
        if self.is_closed() {
            return;
        }
        for stream in self.streams().filter(|stream| stream.has_open_batch.load(Relaxed)) {
            if let Some(mut guard) = stream.visit()
                && !stream.is_retired.load(Acquire)
                && engine.can_record_in(stream.handle.load(Relaxed))
            {
                close(stream, stream.handle.load(Relaxed), &mut guard);
            }
        }
    }

    /// Returns the streams, retired ones included.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        let places = self.streams.iter().take(self.stream_count.load(Acquire) as usize).chain([&self.overflow_stream]);
        // SAFETY: a stream's memory is never freed, and a place is filled before `stream_count` passes it.
        places.filter_map(|place| unsafe { place.load(Acquire).as_ref() })
    }

    /// Returns true if launches into one of the streams are in no closed batch yet.
    pub fn has_open_batch(&self) -> bool {
        self.streams().any(|stream| stream.has_open_batch.load(Relaxed))
    }

    /// Returns the stream shared by all streams for which [`Meter::stream`] has no place. Each launch into it is measured separately. Returns
    /// `None` if `allocate` returns null; it has to return zeroed memory otherwise.
    pub fn overflow_stream(&self, allocate: impl FnOnce() -> *mut Stream) -> Option<&Stream> {
        if self.overflow_stream.load(Acquire).is_null() {
            let made = allocate();
            // SAFETY: null, or new zeroed memory of the right size.
            let stream = unsafe { made.as_ref() }?;
            // No stream of the driver has this number.
            stream.id.store(1, Relaxed);
            stream.is_overflow.store(true, Relaxed);
            _ = self.overflow_stream.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire);
        }
        // SAFETY: a stream's memory is never freed.
        unsafe { self.overflow_stream.load(Acquire).as_ref() }
    }

    /// Returns the stream with this number: the one in use, a retired one that is reused, or a new one. Returns `None` if there are
    /// [`MAX_STREAMS`], or if `allocate` returns null; it has to return zeroed memory otherwise.
    pub fn stream(&self, id: u64, allocate: impl FnOnce() -> *mut Stream) -> Option<&Stream> {
        let is_known = |stream: &&Stream| stream.id.load(Acquire) == id && !stream.is_retired.load(Acquire);
        if let Some(stream) = self.streams().find(is_known).or_else(|| self.reuse_retired(id)) {
            return Some(stream);
        }
        if self.stream_count.load(Acquire) as usize >= MAX_STREAMS {
            return None;
        }
        let made = allocate();
        // SAFETY: null, or new zeroed memory of the right size.
        let stream = unsafe { made.as_ref() }?;
        stream.id.store(id, Relaxed);
        stream.lock()?.open().1.is_interrupted = true;
        loop {
            let place = self.stream_count.load(Acquire);
            let taken = self.streams.get(place as usize)?.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire);
            // If another thread was first, it may not have counted its stream yet.
            _ = self.stream_count.compare_exchange(place, place + 1, AcqRel, Acquire);
            if taken.is_ok() {
                break;
            }
        }
        Some(stream)
    }

    fn reuse_retired(&self, id: u64) -> Option<&Stream> {
        for stream in self.streams() {
            let is_free = stream.is_retired.load(Acquire) && stream.closed_batches() == 0;
            if let Some(mut guard) = is_free.then(|| stream.lock()).flatten() {
                if !stream.is_retired.swap(false, AcqRel) {
                    continue;
                }
                stream.id.store(id, Release);
                let (batch, state) = guard.open();
                batch.clear();
                (state.is_interrupted, state.idle_from) = (true, 0);
                stream.has_open_batch.store(false, Relaxed);
                stream.guest_ns.store(0, Relaxed);
                drop(guard);
                return Some(stream);
            }
        }
        None
    }

    /// Closes the meter for good, after waiting for another thread's harvest. Called before the context is destroyed. Charges the unfinished
    /// work as expected, and returns that charge in nanoseconds.
    pub fn close(&self, engine: &impl Engine) -> u64 {
        self.is_closed.store(true, Release);
        // A harvest only makes driver calls that do not wait.
        for _ in 0..10_000 {
            if !self.is_harvesting.swap(true, Acquire) {
                break;
            }
            engine.sleep(10_000);
        }
        let mut unfinished_ns = 0;
        for stream in self.streams() {
            // SAFETY: this is the harvester, and no thread launches into a context that is being destroyed.
            while let Some(batch) = unsafe { stream.oldest() } {
                // Its GPU time will never be known.
                unfinished_ns += batch.expected_ns;
                if let Some(rate) = self.account.rate() {
                    self.account.charge(batch.expected_ns as i64, rate);
                }
                self.account.remove_in_flight(batch);
                // SAFETY: as above.
                unsafe { stream.remove_oldest() };
            }
        }
        unfinished_ns
    }

    /// Charges finished batches, and work that has been running for long. Does nothing while another thread does it.
    pub(crate) fn harvest(&self, engine: &impl Engine, rate: Rate) {
        if self.is_harvesting.swap(true, Acquire) {
            return;
        }
        let _harvest = Harvest(self);
        if self.is_closed() {
            return;
        }
        if self.account.is_watch_late(engine.now_approx()) {
            // The thread that notices frozen time runs in a moment.
            engine.sleep(2 * MIN_PAUSE_NS);
        }
        // SAFETY: this is the harvester.
        let timeline = unsafe { &mut *self.timeline.get() };
        timeline.harvest += 1;
        let is_running = loop {
            let mut first: Option<(&Stream, u64, u64)> = None;
            let (mut is_running, mut running_since) = (false, u64::MAX);
            for stream in self.streams() {
                match timeline.oldest_batch(engine, stream) {
                    None => {}
                    Some(BatchProgress::Running { since }) => {
                        // Work that waits for something else (a copy, the host) has not begun.
                        is_running |= since.is_some();
                        running_since = running_since.min(since.unwrap_or(u64::MAX));
                    }
                    Some(BatchProgress::Finished { start, end }) if first.is_none_or(|(_, earliest, _)| start < earliest) => {
                        first = Some((stream, start, end));
                    }
                    Some(BatchProgress::Finished { .. }) => {}
                }
            }
            let Some((stream, start, end)) = first else { break is_running };
            self.charge_batch(engine, timeline, rate, stream, (start.min(running_since), start, end));
        };
        self.charge_running(engine, timeline, rate, is_running);
    }
}
