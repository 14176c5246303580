//! Times of work on the GPU: an event before the work and one after it, which are queried later, when they are likely to have finished.
//!
//! Each context has a lane: a ring of pairs of events. A thread that makes a call harvests the oldest pairs: it writes the times of those
//! that have finished into the trace. A thread that has waited for the GPU harvests all. There is no lock: the state of a pair hands it
//! from the thread that makes the call to the one that harvests, and only one thread harvests a lane at a time.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::trace::Ring;

use crate::loader::driver;
use crate::loader::driver::CaptureRelaxed;
use crate::os::clock;
use vgpu_cuda_abi::cuda::{Handle, NOT_READY, SUCCESS};

/// Number of contexts with a lane.
const LANES: usize = 16;
/// Number of pairs in a lane.
const PAIRS: u32 = 4096;
/// Most pairs, the oldest ones, that are queried after a call.
const MAX_AFTER_CALL: u32 = 4;
/// Largest distance from the anchor, in nanoseconds. The driver returns milliseconds as a 32-bit float: beyond a second that is coarser
/// than 60 ns.
const MAX_ANCHOR_DISTANCE_NS: i64 = 1_000_000_000;
/// Start of a lane's clock in nanoseconds, so that work before its first event has a time too.
const ORIGIN: u64 = 1 << 50;
/// Shortest time between two harvests of all pairs while none is free, in nanoseconds.
const FULL_HARVEST_INTERVAL_NS: u64 = 1_000_000;

/// Sleep while another thread harvests a lane that is to be emptied, in nanoseconds.
const HARVEST_WAIT_NS: i64 = 10_000;

/// State of a pair: free, or being recorded.
const NOT_RECORDED: u32 = 0;
/// State of a pair: both events are in the stream.
const IN_FLIGHT: u32 = 1;
/// State of a pair: done, to be freed in order.
const FINISHED: u32 = 2;

/// Pair of events around one piece of work.
#[repr(C)]
struct Pair {
    /// [`NOT_RECORDED`], [`IN_FLIGHT`] or [`FINISHED`].
    state: AtomicU32,
    /// Event before the work.
    start: AtomicPtr<core::ffi::c_void>,
    /// Event after the work.
    end: AtomicPtr<core::ffi::c_void>,
    /// Number of the record that gets the times.
    record: AtomicU64,
}

/// Clock of a lane: a finished event and its time.
struct Clock {
    /// The event; null before the first pair has finished.
    anchor: Handle,
    /// Time of the event in nanoseconds.
    at: u64,
}

/// Ring of pairs of one context.
struct Lane {
    /// Handle of the context; 0 is a free lane.
    context: AtomicU64,
    /// Number of the next pair to take.
    head: AtomicU32,
    /// Number of the oldest pair that is not free.
    tail: AtomicU32,
    /// Whether a thread harvests.
    is_being_harvested: AtomicBool,
    /// Time of the last harvest that was made because no pair was free, in nanoseconds.
    last_full_ns: AtomicU64,
    /// Clock of the lane; belongs to the thread that harvests.
    clock: UnsafeCell<Clock>,
    /// The pairs.
    pairs: [Pair; PAIRS as usize],
}

/// Lanes of this process. All zero is empty.
pub struct Lanes([Lane; LANES]);

// SAFETY: only the thread that set `is_being_harvested` uses `clock`; the rest is atomics.
unsafe impl Sync for Lane {}

/// Pair of events whose first one is in the stream.
pub struct Timer {
    /// The pair.
    pair: &'static Pair,
    /// Number of the lane.
    index: u8,
}

impl Lanes {
    /// Records the first event of a pair. `None` if no pair is free or an event fails; then the work has no time.
    pub fn start(&'static self, ring: Option<&Ring>, stream: Handle) -> Option<Timer> {
        let _relaxed = CaptureRelaxed::enter();
        let context = driver::context_of(stream);
        let (index, lane) = self.of(context)?;
        let pair = lane.take(ring)?;
        for event in [&pair.start, &pair.end] {
            if event.load(Relaxed).is_null() {
                // SAFETY: the context lives, as the program is using a stream of it.
                let created = unsafe { driver::create_event(context) };
                event.store(created.unwrap_or(core::ptr::null_mut()), Relaxed);
            }
        }
        let (start, end) = (pair.start.load(Relaxed), pair.end.load(Relaxed));
        // SAFETY: the lane's event, and a stream that the program uses in this call.
        if start.is_null() || end.is_null() || unsafe { driver::event_record(start, stream) } != SUCCESS {
            pair.state.store(FINISHED, Release);
            return None;
        }
        Some(Timer { pair, index: index as u8 })
    }

    /// Returns a context's lane, and its number; takes a free one for a new context.
    fn of(&'static self, context: Handle) -> Option<(usize, &'static Lane)> {
        if context.is_null() {
            return None;
        }
        let find = |wanted: &dyn Fn(&Lane) -> bool| self.0.iter().enumerate().find(|(_, lane)| wanted(lane));
        find(&|lane| lane.context.load(Acquire) == context as u64)
            .or_else(|| find(&|lane| lane.context.compare_exchange(0, context as u64, AcqRel, Acquire).is_ok()))
    }

    /// Writes the times of finished work: of `all` pairs, or of the oldest few.
    pub fn harvest(&self, ring: &Ring, all: bool) {
        for lane in self.0.iter().filter(|lane| lane.context.load(Acquire) != 0) {
            lane.harvest(ring, if all { PAIRS } else { MAX_AFTER_CALL });
        }
    }

    /// Empties all lanes before contexts end with their events. A context that stays gets a new lane.
    pub fn close(&self, ring: Option<&Ring>) {
        for lane in self.0.iter().filter(|lane| lane.context.load(Acquire) != 0) {
            if let Some(ring) = ring {
                lane.harvest(ring, PAIRS);
            }
            // Another thread's harvest takes moments.
            for _ in 0..1000 {
                if !lane.is_being_harvested.swap(true, Acquire) {
                    lane.empty();
                    break;
                }
                clock::nap(HARVEST_WAIT_NS);
            }
        }
    }
}

impl Timer {
    /// Records the second event. `None` if that fails.
    pub fn stop(self, stream: Handle) -> Option<Self> {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: the lane's event, and a stream that the program uses in this call.
        if unsafe { driver::event_record(self.pair.end.load(Relaxed), stream) } == SUCCESS {
            return Some(self);
        }
        self.discard();
        None
    }

    /// Frees the pair without reading its times.
    pub fn discard(self) {
        self.pair.state.store(FINISHED, Release);
    }

    /// Assigns the times to a record.
    pub fn assign(self, record: u64) {
        self.pair.record.store(record, Relaxed);
        self.pair.state.store(IN_FLIGHT, Release);
    }

    /// Returns the number of the context among this process's lanes.
    pub fn context(&self) -> u8 {
        self.index
    }
}

impl Lane {
    /// Returns a pair by its running number.
    fn pair(&self, number: u32) -> Option<&Pair> {
        self.pairs.get((number % PAIRS) as usize)
    }

    /// Takes a free pair; `None` if all are in flight.
    fn take(&'static self, ring: Option<&Ring>) -> Option<&'static Pair> {
        for _ in 0..16 {
            let head = self.head.load(Acquire);
            if head.wrapping_sub(self.tail.load(Acquire)) >= PAIRS {
                let now = clock::monotonic();
                if now.saturating_sub(self.last_full_ns.load(Relaxed)) < FULL_HARVEST_INTERVAL_NS {
                    return None;
                }
                self.last_full_ns.store(now, Relaxed);
                self.harvest(ring?, PAIRS);
                continue;
            }
            if self.head.compare_exchange(head, head.wrapping_add(1), AcqRel, Acquire).is_ok() {
                return self.pair(head);
            }
        }
        None
    }

    /// Forgets all events and frees the lane. Only for the thread that set `is_being_harvested`.
    fn empty(&self) {
        for pair in &self.pairs {
            pair.start.store(core::ptr::null_mut(), Relaxed);
            pair.end.store(core::ptr::null_mut(), Relaxed);
            pair.state.store(NOT_RECORDED, Relaxed);
        }
        // SAFETY: this thread has set `is_being_harvested`.
        unsafe { *self.clock.get() = Clock { anchor: core::ptr::null_mut(), at: 0 } };
        self.tail.store(self.head.load(Relaxed), Release);
        self.context.store(0, Release);
        self.is_being_harvested.store(false, Release);
    }

    /// Writes the times of finished work among the `most` oldest pairs, and frees pairs.
    fn harvest(&self, ring: &Ring, most: u32) {
        if self.tail.load(Relaxed) == self.head.load(Relaxed) || self.is_being_harvested.swap(true, Acquire) {
            return;
        }
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: this thread has set `is_being_harvested`.
        let clock = unsafe { &mut *self.clock.get() };
        let (mut tail, head) = (self.tail.load(Relaxed), self.head.load(Acquire));
        for number in (0..head.wrapping_sub(tail).min(most)).map(|step| tail.wrapping_add(step)) {
            let Some(pair) = self.pair(number) else { break };
            if pair.state.load(Acquire) == IN_FLIGHT {
                // SAFETY: the lane's event, in a context that lives.
                match unsafe { driver::event_query(pair.end.load(Relaxed)) } {
                    SUCCESS => {
                        if let Some((begin, took)) = clock.times(pair) {
                            ring.ran(pair.record.load(Relaxed), begin, took);
                        }
                        pair.state.store(FINISHED, Relaxed);
                    }
                    // Later pairs may have finished in other streams, but the next calls will see them soon.
                    NOT_READY if most <= MAX_AFTER_CALL => break,
                    NOT_READY => {}
                    // An error of the context.
                    _ => pair.state.store(FINISHED, Relaxed),
                }
            }
        }
        while tail != head
            && let Some(pair) = self.pair(tail)
            && pair.state.load(Acquire) == FINISHED
        {
            pair.state.store(NOT_RECORDED, Relaxed);
            tail = tail.wrapping_add(1);
        }
        self.tail.store(tail, Release);
        self.is_being_harvested.store(false, Release);
    }
}

impl Clock {
    /// Returns the begin of a finished pair's work by this clock, and its duration, in nanoseconds.
    fn times(&mut self, pair: &Pair) -> Option<(u64, u64)> {
        let (start, end) = (pair.start.load(Relaxed), pair.end.load(Relaxed));
        // SAFETY: events of one lane, whose context lives while a thread harvests it.
        let elapsed = |from, to| unsafe { driver::elapsed_ns(from, to) };
        let took = elapsed(start, end)?.max(0) as u64;
        if self.anchor.is_null() {
            (self.anchor, self.at) = (end, ORIGIN);
            pair.end.store(core::ptr::null_mut(), Relaxed);
            return Some((ORIGIN - took, took));
        }
        let distance = elapsed(self.anchor, start)?;
        let begin = self.at.saturating_add_signed(distance);
        if distance > MAX_ANCHOR_DISTANCE_NS {
            // No thread may record the anchor again, so the pair gets the old anchor instead.
            pair.end.store(self.anchor, Relaxed);
            (self.anchor, self.at) = (end, begin.saturating_add(took));
        }
        Some((begin, took))
    }
}
