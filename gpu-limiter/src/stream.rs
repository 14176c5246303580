//! A stream and its batches, each closed by an event.
//!
//! The open batch belongs to the thread that launches. Once closed, it belongs to the harvester. The two hand batches over through a ring with
//! two counters, like a queue of one producer and one consumer: the producer holds the stream's lock, the consumer the meter's.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use crate::batch::Batch;
use crate::fast_path::FastPath;
use crate::gang_phase::PhaseProgress;

/// Most closed batches of one stream that wait to be harvested.
pub(crate) const RING: u32 = 32;
/// Lock word of a stream that is not in use.
const UNLOCKED: u32 = 0;
/// Lock word while a thread launches. This may take long: the launch may have to wait.
const LAUNCHING: u32 = 1;
/// Lock word while another thread closes the batch. This takes one or two microseconds.
const VISITED: u32 = 2;
/// Number of times to check for the end of another thread's visit or harvest.
pub(crate) const SPINS: u32 = 1_000;

/// A stream. All zero is an unused one. The part that the fast path needs is in one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Stream {
    fast_path: UnsafeCell<FastPath>,
    /// [`UNLOCKED`], [`LAUNCHING`] or [`VISITED`].
    lock_word: AtomicU32,
    /// Number that identifies the driver's stream; 0 while unused.
    pub(crate) id: AtomicU64,
    /// Set when the program destroys the stream.
    pub(crate) is_retired: AtomicBool,
    /// Several of the program's streams share this one. An event in one of them says nothing about the others, so every launch is a batch of
    /// its own.
    pub(crate) is_overflow: AtomicBool,
    head: AtomicU32,
    tail: AtomicU32,
    ring: [UnsafeCell<Batch>; RING as usize],
    state: UnsafeCell<StreamState>,
    /// The open batch has launches.
    pub(crate) has_open_batch: AtomicBool,
    /// Set while the program waits for everything in the stream.
    pub(crate) is_awaited: AtomicBool,
    /// The driver's handle, as of the last launch.
    pub(crate) handle: AtomicPtr<core::ffi::c_void>,
    /// Expected GPU time of launches by threads that found the stream locked, in nanoseconds. Not in a batch yet.
    pub(crate) guest_ns: AtomicU64,
    /// End of the last harvested batch on the GPU's timeline. Used by the harvester only.
    pub(crate) last_end: AtomicU64,
}

/// State of a stream that only the thread that launches uses.
#[derive(Debug)]
pub(crate) struct StreamState {
    /// Host time at which the stream runs out of work: the expected end of the last launch, or the end of the program's wait.
    pub idle_from: u64,
    /// Host time at which a launch last read the clock.
    pub clock_read_at: u64,
    /// Launches that did not read the clock have followed.
    pub has_fast_launches: bool,
    /// The next batch must not begin at the end of the last one: something else ran in between.
    pub is_interrupted: bool,
    /// Host time from which the next launch closes the batch.
    pub close_at: u64,
    /// Expected GPU time at which the batch is full, in nanoseconds.
    pub capacity_ns: u64,
    /// Most launches of the next batch. Few after a pause, so that another pause finds them measured.
    pub max_launches: u32,
    /// The last launches before a pause were charged as expected, because their end was not measured.
    pub tail_was_guessed: bool,
    /// Launches in closed batches since the last pause.
    pub launches_since_pause: u32,
    /// Time by which the host may still be late after it was held back, in nanoseconds. Not charged.
    pub lag_allowance_ns: u64,
    /// The GPU waits for the host: it had run out of work before the last batch, or the program's last wait was short.
    pub is_host_bound: bool,
    /// Host time at which the program last resumed after a wait or a nap, and began to wait, in nanoseconds.
    pub resumed_at: u64,
    pub wait_began_at: u64,
    /// The program has waited for everything in the stream since the last batch.
    pub program_waited: bool,
    /// Progress in the current gang phase.
    pub phase: PhaseProgress,
}

impl StreamState {
    /// The program has waited for everything in the stream, until `now`. If that took less than a quarter of the time for which it worked
    /// before, the GPU waits for the host.
    pub fn end_wait(&mut self, now: u64) {
        let (worked, waited) = (self.wait_began_at.saturating_sub(self.resumed_at), now.saturating_sub(self.wait_began_at));
        self.is_host_bound = waited < worked / 4;
        (self.idle_from, self.resumed_at, self.program_waited) = (now, now, true);
    }
}

const _: () = assert!(core::mem::offset_of!(Stream, lock_word) + size_of::<AtomicU32>() <= 64, "the fast path needs one cache line");

// SAFETY: `fast_path`, `state` and the batch at `head` are only reached through a guard, the batches from `tail` to `head` only by the single
// harvester; the counters hand them over with release and acquire.
unsafe impl Sync for Stream {}

/// The lock of a stream: the right to launch into its open batch.
pub struct StreamGuard<'a>(&'a Stream);

/// The same lock, with launches of the fast path that are not in the batch yet.
pub(crate) struct FastGuard<'a>(StreamGuard<'a>);

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        self.0.lock_word.store(UNLOCKED, Release);
    }
}

impl Stream {
    /// Returns the number that identifies the driver's stream; 0 while unused.
    pub fn id(&self) -> u64 {
        self.id.load(Acquire)
    }

    /// Marks the stream as destroyed by the program.
    pub fn retire(&self) {
        self.is_retired.store(true, Release);
    }

    /// Locks the stream for one launch. Returns `None` while another thread launches.
    #[inline]
    pub(crate) fn lock_fast(&self) -> Option<FastGuard<'_>> {
        for _ in 0..SPINS {
            match self.lock_word.compare_exchange(UNLOCKED, LAUNCHING, Acquire, Relaxed) {
                Ok(_) => return Some(FastGuard(StreamGuard(self))),
                Err(VISITED) => core::hint::spin_loop(),
                Err(_) => break,
            }
        }
        None
    }

    /// Locks the stream, and adds the launches of the fast path to the batch. Returns `None` while another thread launches.
    pub fn lock(&self) -> Option<StreamGuard<'_>> {
        self.lock_fast().map(FastGuard::end_fast_path)
    }

    /// Locks the stream for a moment, to close its batch. Returns `None` while any other thread has the lock.
    pub(crate) fn visit(&self) -> Option<StreamGuard<'_>> {
        let is_locked = self.lock_word.compare_exchange(UNLOCKED, VISITED, Acquire, Relaxed).is_ok();
        is_locked.then(|| FastGuard(StreamGuard(self)).end_fast_path())
    }

    /// Returns the number of closed batches that have not been harvested.
    #[inline]
    pub(crate) fn closed_batches(&self) -> u32 {
        self.head.load(Acquire).wrapping_sub(self.tail.load(Acquire)).min(RING)
    }

    fn at(&self, counter: u32) -> *mut Batch {
        // The remainder is always within the ring.
        self.ring.get((counter % RING) as usize).map_or(core::ptr::null_mut(), UnsafeCell::get)
    }

    /// Returns the oldest closed batch.
    ///
    /// # Safety
    /// Only the harvester may call this, and there is one at a time.
    #[expect(clippy::mut_from_ref, reason = "the harvester owns closed batches")]
    pub(crate) unsafe fn oldest(&self) -> Option<&mut Batch> {
        let tail = self.tail.load(Relaxed);
        if self.head.load(Acquire) == tail {
            return None;
        }
        // SAFETY: launching threads leave closed batches alone until `tail` passes them.
        unsafe { self.at(tail).as_mut() }
    }

    /// Removes the oldest closed batch.
    ///
    /// # Safety
    /// Only the harvester may call this, and only after [`Stream::oldest`] returned a batch.
    pub(crate) unsafe fn remove_oldest(&self) {
        self.tail.store(self.tail.load(Relaxed).wrapping_add(1), Release);
    }
}

impl<'a> FastGuard<'a> {
    /// Returns the fast path.
    #[inline]
    pub fn fast_path(&mut self) -> &mut FastPath {
        self.0.fast_path()
    }

    /// Ends the fast path: adds its launches to the batch.
    pub fn end_fast_path(mut self) -> StreamGuard<'a> {
        // SAFETY: as in `StreamGuard::fast_path`; `StreamGuard::open` gives access to other parts of the stream only.
        let fast_path = unsafe { &mut *self.0.0.fast_path.get() };
        let (kinds, launched_ns) = fast_path.launched();
        if !kinds.is_empty() {
            let (batch, state) = self.0.open();
            kinds.iter().for_each(|&kind| batch.add(kind));
            batch.expected_ns += launched_ns;
            state.phase.given_ns += launched_ns;
            state.idle_from += launched_ns;
            state.has_fast_launches = true;
        }
        fast_path.end();
        self.0
    }
}

impl StreamGuard<'_> {
    /// Returns the fast path for the launches after this one.
    #[inline]
    pub(crate) fn fast_path(&mut self) -> &mut FastPath {
        // SAFETY: the guard is the only access.
        unsafe { &mut *self.0.fast_path.get() }
    }

    /// Returns the open batch and the stream's state.
    #[inline]
    pub(crate) fn open(&mut self) -> (&mut Batch, &mut StreamState) {
        // SAFETY: the guard is the only access, and the batch at `head` is not harvested before it is closed.
        unsafe { (&mut *self.0.at(self.0.head.load(Relaxed)), &mut *self.0.state.get()) }
    }

    /// Hands the open batch to the harvester; the next one is empty. The caller has checked that [`Stream::closed_batches`] is below
    /// [`RING`] - 1.
    pub(crate) fn close(&mut self) {
        self.0.head.store(self.0.head.load(Relaxed).wrapping_add(1), Release);
        self.open().0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Box<Stream> {
        // SAFETY: an all-zero stream is unused and valid.
        Box::new(unsafe { std::mem::zeroed() })
    }

    /// Lets other threads run, also on a busy machine.
    fn pause() {
        std::thread::sleep(std::time::Duration::from_micros(20));
    }

    #[test]
    fn each_batch_is_handed_over_once_and_complete() {
        const EACH: u64 = 5_000;
        let stream = stream();
        let failed = AtomicBool::new(false);
        let mut wrong = None;
        std::thread::scope(|scope| {
            let launching = |from: u64| {
                let (stream, failed) = (&stream, &failed);
                move || {
                    for number in from..from + EACH {
                        while !failed.load(Relaxed) {
                            if stream.closed_batches() < RING - 1
                                && let Some(mut guard) = stream.lock()
                                && stream.closed_batches() < RING - 1
                            {
                                let (batch, _) = guard.open();
                                (batch.expected_ns, batch.wake_lag_ns, batch.count) = (number, number, 1);
                                guard.close();
                                break;
                            }
                            pause();
                        }
                    }
                }
            };
            scope.spawn(launching(1));
            scope.spawn(launching(1_000_001));
            let mut seen = [0u64, 1_000_000];
            while wrong.is_none() && seen.iter().sum::<u64>() < 1_000_000 + 2 * EACH {
                // SAFETY: this is the only harvester.
                let Some(batch) = (unsafe { stream.oldest() }) else {
                    pause();
                    continue;
                };
                // In order, none lost, none twice.
                let last = &mut seen[usize::from(batch.expected_ns > 1_000_000)];
                if (batch.expected_ns, batch.wake_lag_ns, batch.count) != (*last + 1, *last + 1, 1) {
                    wrong = Some((batch.expected_ns, batch.wake_lag_ns, batch.count, *last));
                }
                *last += 1;
                // SAFETY: as above.
                unsafe { stream.remove_oldest() };
            }
            failed.store(wrong.is_some(), Relaxed);
        });
        assert_eq!(wrong, None);
        assert_eq!(stream.closed_batches(), 0);
    }

    #[test]
    fn one_thread_has_the_lock_at_a_time() {
        let stream = stream();
        let guard = stream.lock();
        assert!(guard.is_some() && stream.lock().is_none() && stream.visit().is_none());
        drop(guard);
        let visit = stream.visit();
        assert!(visit.is_some() && stream.lock().is_none() && stream.visit().is_none());
        drop(visit);
        assert!(stream.lock().is_some());
    }
}
