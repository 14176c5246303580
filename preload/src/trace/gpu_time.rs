//! When work ran on the GPU: an event before it and one behind it, which are asked later, when they are likely to be finished.
//!
//! Each context has a lane: pairs of events, used in turn. Whoever makes a call looks whether the oldest pairs are finished, and writes
//! their times into the ring; whoever waited for the GPU looks at all of them. No lock: pairs are handed from the thread that makes
//! the call to the one that looks at them by their state, and only one thread looks at a time.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::trace::Ring;

use crate::loader::driver;
use crate::loader::driver::CaptureRelaxed;
use crate::os::clock;
use vgpu_cuda_abi::cuda::{Handle, NOT_READY, SUCCESS};

const LANES: usize = 16;
/// Pairs of a lane.
const PAIRS: u32 = 4096;
/// So many of the oldest pairs are looked at after each call.
const FEW: u32 = 4;
/// The driver tells distances as milliseconds in 32 bits: beyond a second they are known to no more than 60 ns.
const FAR: i64 = 1_000_000_000;
/// Where a lane's clock begins, so that what lies before its first event has a time, too.
const ORIGIN: u64 = 1 << 50;
/// All pairs are looked at again at most so often, in nanoseconds, while none is free.
const PAUSE: u64 = 1_000_000;

// States of a pair: free or being recorded, in flight, finished with.
const TAKEN: u32 = 0;
const IN_FLIGHT: u32 = 1;
const FINISHED: u32 = 2;

#[repr(C)]
struct Pair {
    state: AtomicU32,
    start: AtomicPtr<core::ffi::c_void>,
    end: AtomicPtr<core::ffi::c_void>,
    record: AtomicU64,
}

/// The clock of a lane: an event that is finished, and its time.
struct Clock {
    anchor: Handle,
    at: u64,
}

struct Lane {
    /// 0 is free.
    context: AtomicU64,
    head: AtomicU32,
    tail: AtomicU32,
    looking: AtomicBool,
    looked: AtomicU64,
    clock: UnsafeCell<Clock>,
    pairs: [Pair; PAIRS as usize],
}

/// All lanes of this process. All zero is none.
pub struct Lanes([Lane; LANES]);

// SAFETY: `clock` is only touched by the holder of `looking`; the rest is atomics.
unsafe impl Sync for Lane {}

/// A pair of events whose first one is recorded.
pub struct Timer {
    pair: &'static Pair,
    index: u8,
}

/// Whether what goes into the stream now is recorded into a graph, or is going to be refused because something else is.
pub fn is_captured(stream: Handle) -> bool {
    let mut capturing = 0;
    // SAFETY: the program's own stream; the driver writes one integer.
    unsafe { driver::is_capturing(stream, &raw mut capturing) != SUCCESS || capturing != 0 }
}

fn context_of(stream: Handle) -> Handle {
    let mut context = core::ptr::null_mut();
    // SAFETY: the program's own stream; the driver writes one handle.
    if stream as usize <= 2 || unsafe { driver::stream_context(stream, &raw mut context) } != SUCCESS {
        context = driver::current_context();
    }
    context
}

impl Lanes {
    /// Records the first event of a pair. `None` if there can be none now: the work's time is not known then.
    pub fn start(&'static self, ring: Option<&Ring>, stream: Handle) -> Option<Timer> {
        let _relaxed = CaptureRelaxed::enter();
        let context = context_of(stream);
        let (index, lane) = self.of(context)?;
        let pair = lane.take(ring)?;
        for event in [&pair.start, &pair.end] {
            if event.load(Relaxed).is_null() {
                event.store(create(context), Relaxed);
            }
        }
        let (start, end) = (pair.start.load(Relaxed), pair.end.load(Relaxed));
        // SAFETY: an event of ours, and a stream that the program is using in this very call.
        if start.is_null() || end.is_null() || unsafe { driver::event_record(start, stream) } != SUCCESS {
            pair.state.store(FINISHED, Release);
            return None;
        }
        Some(Timer { pair, index: index as u8 })
    }

    fn of(&'static self, context: Handle) -> Option<(usize, &'static Lane)> {
        if context.is_null() {
            return None;
        }
        let find = |wanted: &dyn Fn(&Lane) -> bool| self.0.iter().enumerate().find(|(_, lane)| wanted(lane));
        find(&|lane| lane.context.load(Acquire) == context as u64)
            .or_else(|| find(&|lane| lane.context.compare_exchange(0, context as u64, AcqRel, Acquire).is_ok()))
    }

    /// Writes down what has finished: `all` of it, or of the oldest few.
    pub fn harvest(&self, ring: &Ring, all: bool) {
        for lane in self.0.iter().filter(|lane| lane.context.load(Acquire) != 0) {
            lane.harvest(ring, if all { PAIRS } else { FEW });
        }
    }

    /// Contexts are about to end, and the events in them. Whoever goes on in a context that stays gets a new lane.
    pub fn close(&self, ring: Option<&Ring>) {
        for lane in self.0.iter().filter(|lane| lane.context.load(Acquire) != 0) {
            if let Some(ring) = ring {
                lane.harvest(ring, PAIRS);
            }
            // Whoever is at it is done in a moment.
            for _ in 0..1000 {
                if !lane.looking.swap(true, Acquire) {
                    lane.empty();
                    break;
                }
                let pause = libc::timespec { tv_sec: 0, tv_nsec: 10_000 };
                // SAFETY: the structure is valid; the rest of an interrupted sleep is not needed.
                unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) };
            }
        }
    }
}

fn create(context: Handle) -> Handle {
    let foreign = driver::current_context() != context;
    let (mut event, mut popped) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: the context lives: the stream that is about to be used is its. What is pushed is popped.
    unsafe {
        if foreign && driver::context_push(context) != SUCCESS {
            return core::ptr::null_mut();
        }
        // Flags: timing, no blocking wait.
        let status = driver::event_create(&raw mut event, 0);
        if foreign {
            driver::context_pop(&raw mut popped);
        }
        if status == SUCCESS { event } else { core::ptr::null_mut() }
    }
}

impl Timer {
    /// Records the second event.
    pub fn stop(self, stream: Handle) -> Option<Self> {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: an event of ours, and a stream that the program is using in this very call.
        if unsafe { driver::event_record(self.pair.end.load(Relaxed), stream) } == SUCCESS {
            return Some(self);
        }
        self.drop_it();
        None
    }

    /// Nothing is going to be asked of it.
    pub fn drop_it(self) {
        self.pair.state.store(FINISHED, Release);
    }

    /// Its times are the record's with this number.
    pub fn belongs_to(self, record: u64) {
        self.pair.record.store(record, Relaxed);
        self.pair.state.store(IN_FLIGHT, Release);
    }

    /// Which of the process's contexts it is.
    pub fn context(&self) -> u8 {
        self.index
    }
}

impl Lane {
    fn pair(&self, number: u32) -> Option<&Pair> {
        self.pairs.get((number % PAIRS) as usize)
    }

    fn take(&'static self, ring: Option<&Ring>) -> Option<&'static Pair> {
        for _ in 0..16 {
            let head = self.head.load(Acquire);
            if head.wrapping_sub(self.tail.load(Acquire)) >= PAIRS {
                let now = clock::monotonic();
                if now.saturating_sub(self.looked.load(Relaxed)) < PAUSE {
                    return None;
                }
                self.looked.store(now, Relaxed);
                self.harvest(ring?, PAIRS);
                continue;
            }
            if self.head.compare_exchange(head, head.wrapping_add(1), AcqRel, Acquire).is_ok() {
                return self.pair(head);
            }
        }
        None
    }

    /// Forgets all its events, and is free for another context. Only for the one who looks.
    fn empty(&self) {
        for pair in &self.pairs {
            pair.start.store(core::ptr::null_mut(), Relaxed);
            pair.end.store(core::ptr::null_mut(), Relaxed);
            pair.state.store(TAKEN, Relaxed);
        }
        // SAFETY: we are the one who looks.
        unsafe { *self.clock.get() = Clock { anchor: core::ptr::null_mut(), at: 0 } };
        self.tail.store(self.head.load(Relaxed), Release);
        self.context.store(0, Release);
        self.looking.store(false, Release);
    }

    fn harvest(&self, ring: &Ring, most: u32) {
        if self.tail.load(Relaxed) == self.head.load(Relaxed) || self.looking.swap(true, Acquire) {
            return;
        }
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: we are the one who looks.
        let clock = unsafe { &mut *self.clock.get() };
        let (mut tail, head) = (self.tail.load(Relaxed), self.head.load(Acquire));
        for number in (0..head.wrapping_sub(tail).min(most)).map(|step| tail.wrapping_add(step)) {
            let Some(pair) = self.pair(number) else { break };
            if pair.state.load(Acquire) == IN_FLIGHT {
                // SAFETY: an event of ours in a context that is not closed.
                match unsafe { driver::event_query(pair.end.load(Relaxed)) } {
                    SUCCESS => {
                        if let Some((begin, took)) = clock.times(pair) {
                            ring.ran(pair.record.load(Relaxed), begin, took);
                        }
                        pair.state.store(FINISHED, Relaxed);
                    }
                    // Streams overtake each other, but the next few calls come soon.
                    NOT_READY if most <= FEW => break,
                    NOT_READY => {}
                    // The context is broken.
                    _ => pair.state.store(FINISHED, Relaxed),
                }
            }
        }
        while tail != head
            && let Some(pair) = self.pair(tail)
            && pair.state.load(Acquire) == FINISHED
        {
            pair.state.store(TAKEN, Relaxed);
            tail = tail.wrapping_add(1);
        }
        self.tail.store(tail, Release);
        self.looking.store(false, Release);
    }
}

impl Clock {
    /// When a finished pair's work began by this clock, and how long it took.
    fn times(&mut self, pair: &Pair) -> Option<(u64, u64)> {
        let (start, end) = (pair.start.load(Relaxed), pair.end.load(Relaxed));
        let took = between(start, end)?.max(0) as u64;
        if self.anchor.is_null() {
            (self.anchor, self.at) = (end, ORIGIN);
            pair.end.store(core::ptr::null_mut(), Relaxed);
            return Some((ORIGIN - took, took));
        }
        let distance = between(self.anchor, start)?;
        let begin = self.at.saturating_add_signed(distance);
        if distance > FAR {
            // The anchor is an event that nobody records again: the pair gets the old one.
            pair.end.store(self.anchor, Relaxed);
            (self.anchor, self.at) = (end, begin.saturating_add(took));
        }
        Some((begin, took))
    }
}

/// Nanoseconds from one finished event to another.
fn between(from: Handle, to: Handle) -> Option<i64> {
    let mut milliseconds = 0f32;
    // SAFETY: events of ours in a context that is not closed; the driver writes one number.
    let status = unsafe { driver::event_elapsed(&raw mut milliseconds, from, to) };
    (status == SUCCESS).then_some((f64::from(milliseconds) * 1e6) as i64)
}
