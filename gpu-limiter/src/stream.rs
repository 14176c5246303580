//! One stream's launches, in batches, each closed by an event.
//!
//! A batch belongs to the thread that launches until it is closed, then to whoever harvests. Both sides see it through two
//! counters, as in a queue of one producer and one consumer: the producer holds the stream's claim, the consumer the meter's.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use crate::cost_model::Kind;
use crate::engine::Handle;
use crate::fast_path::Quick;
use crate::gang_phase::Had;
use crate::host_bound::Host;
use crate::wake_cost::Waking;

/// What the harvester saw of a batch, so that it need not ask again while it settles those of other streams. All zero is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub start: u64,
    /// 0: it has not been seen to be finished.
    pub end: u64,
    /// The harvest in which it still ran, and since when; 0 is unknown.
    pub running_in: u64,
    pub since: u64,
}

/// Closed batches of one stream that can wait to be harvested.
pub const RING: u32 = 32;
/// Most launches in a batch, but for those of one kind: an event, and the accounts after it, then come with fewer than one launch in a hundred.
pub const MOST: usize = 256;
/// Nobody is at the stream.
const FREE: u32 = 0;
/// A thread is between the start and the end of a launch, which may take long: it may have to wait.
const LAUNCHING: u32 = 1;
/// Another one ends the batch, which takes a microsecond or two.
const VISITED: u32 = 2;
/// How often to look again for the end of a visit.
const SPINS: u32 = 1_000;

/// Launches that are measured together.
#[derive(Debug)]
pub struct Batch {
    /// Recorded before the first launch, if the stream was idle then; else the batch begins where the last one ended.
    pub start: Handle,
    /// Recorded behind the last launch.
    pub end: Handle,
    /// Whether `start` counts.
    pub fresh: bool,
    /// Whether `end` was not recorded and the batch is taken to last as long as expected.
    pub guessed: bool,
    /// Whether the stream was found idle when it was ended, so that it took no longer than measured, and perhaps less.
    pub at_most: bool,
    /// Whether it holds a launch of unknown cost.
    pub unknown: bool,
    /// Whether the launching thread had just been held back: it needs a while to get going again.
    pub woken: bool,
    /// Whether it was begun only because it runs beside what is in flight in another stream.
    pub covered: bool,
    /// Whether all its launches are of one kind.
    pub uniform: bool,
    /// Whether one of them may wait for other GPUs.
    pub collective: bool,
    /// Whether the GPU waits for the stream's host most of the time.
    pub behind: bool,
    /// How many launches.
    pub count: u32,
    /// Nanoseconds that the launches are expected to take.
    pub expected: u64,
    /// Nanoseconds from its start until the driver had loaded what it runs: only then did it begin.
    pub loading: u64,
    /// Nanoseconds of the batch in which there was nothing to run as the host had just been woken.
    pub late: u64,
    /// Nanoseconds by which the host lagged behind in all, excused or not.
    pub lagged: u64,
    /// What the harvester saw of it.
    pub seen: Seen,
    /// What was launched.
    pub kinds: [Kind; MOST],
}

impl Batch {
    /// Whether a launch of this kind must not be measured together with what is in the batch: one that waits for other GPUs goes with its kind
    /// only.
    #[inline]
    pub fn must_not_mix(&self, kind: Kind, collective: bool) -> bool {
        (self.collective || collective) && !(self.uniform && self.kinds.first() == Some(&kind))
    }

    /// Enters a launch.
    #[inline]
    pub fn add(&mut self, kind: Kind) {
        self.uniform = self.count == 0 || self.uniform && self.kinds.first() == Some(&kind);
        if let Some(place) = self.kinds.get_mut(self.count as usize) {
            *place = kind;
        }
        self.count += 1;
    }

    /// Empties it; its events stay.
    pub fn clear(&mut self) {
        (self.count, self.expected, self.loading, self.late, self.lagged) = (0, 0, 0, 0, 0);
        (self.fresh, self.guessed, self.at_most, self.unknown) = (false, false, false, false);
        (self.woken, self.collective, self.behind) = (false, false, false);
        self.seen = Seen::default();
    }
}

/// A stream's state. All zero is a free one. What most launches need of it lies in one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Stream {
    quick: UnsafeCell<Quick>,
    /// What a thread is doing here: one of [`FREE`], [`LAUNCHING`] and [`VISITED`].
    claimed: AtomicU32,
    /// The driver's number for the stream; 0 while free.
    pub id: AtomicU64,
    /// Set once the program has destroyed it.
    pub retired: AtomicBool,
    /// Several of the program's streams have this one place: no event in one of them says anything of the others, so every launch is a
    /// batch of its own.
    pub shared: AtomicBool,
    head: AtomicU32,
    tail: AtomicU32,
    ring: [UnsafeCell<Batch>; RING as usize],
    mine: UnsafeCell<Open>,
    /// Whether there are launches that no event ends yet.
    pub dirty: AtomicBool,
    /// Set while the program waits for all that is in the stream.
    pub awaited: AtomicBool,
    /// The driver's handle of the last launches.
    pub handle: AtomicPtr<core::ffi::c_void>,
    /// Nanoseconds expected of launches by threads that found the stream claimed, not in a batch yet.
    pub guests: AtomicU64,
    /// Where the last harvested batch ended, on the GPU's clock; the harvester's.
    pub last_end: AtomicU64,
}

/// What the launching thread knows of the batch it is filling.
#[derive(Debug)]
pub struct Open {
    /// When the stream runs out of work, as far as the host can tell: after the last launch's expected end, or when the program had
    /// waited for all of it.
    pub idle_from: u64,
    /// When a launch last asked what time it is.
    pub asked_at: u64,
    /// Whether others followed that did not.
    pub unasked: bool,
    /// The next batch must not begin where the last one ended: something else came between.
    pub interrupted: bool,
    /// The batch is closed with the first launch from then on.
    pub closes_at: u64,
    /// The batch is full when it is expected to take so many nanoseconds.
    pub full: u64,
    /// There was so much budget when the batch began that nobody has to know soon what it takes.
    pub spare: bool,
    /// How many launches the next batch may have: few after a pause, so that a pause after them finds them measured.
    pub most: u32,
    /// The last launches before a pause were charged as expected, as nobody saw when they ended.
    pub unseen: bool,
    /// How many launches there were since a pause in closed batches.
    pub since_pause: u32,
    /// Nanoseconds for which the host may still lag behind after it was held back.
    pub excuse: u64,
    /// The GPU was done with everything when the last batch began: the host does not keep up with it.
    pub slow: bool,
    /// Whether the GPU waits for it most of the time.
    pub host: Host,
    /// What it loses after it was held back.
    pub waking: Waking,
    /// The program has waited for all that was in the stream since the last batch.
    pub has_waited: bool,
    /// What the stream had since launches were last held back.
    pub had: Had,
}

const _: () =
    assert!(core::mem::offset_of!(Stream, claimed) + size_of::<AtomicU32>() <= 64, "what most launches need is in one cache line");

// SAFETY: `quick`, `mine` and the batch at `head` are only reached through a `Claim`, the batches from `tail` to `head` only by the one
// harvester; the counters hand them over with release and acquire.
unsafe impl Sync for Stream {}

/// The right to launch into a stream's batch.
pub struct Claim<'a>(&'a Stream);

/// The same before it is known what was launched without asking.
pub struct QuickClaim<'a>(Claim<'a>);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.claimed.store(FREE, Release);
    }
}

impl Stream {
    /// Takes the stream for one launch. `None` while another thread launches into it.
    #[inline]
    pub fn claim_quickly(&self) -> Option<QuickClaim<'_>> {
        for _ in 0..SPINS {
            match self.claimed.compare_exchange(FREE, LAUNCHING, Acquire, Relaxed) {
                Ok(_) => return Some(QuickClaim(Claim(self))),
                Err(VISITED) => core::hint::spin_loop(),
                Err(_) => break,
            }
        }
        None
    }

    /// The same, with all that was launched in the batch.
    pub fn claim(&self) -> Option<Claim<'_>> {
        self.claim_quickly().map(QuickClaim::whole)
    }

    /// Takes the stream for a moment, to end its batch. `None` while any other thread has it.
    pub fn visit(&self) -> Option<Claim<'_>> {
        self.claimed.compare_exchange(FREE, VISITED, Acquire, Relaxed).is_ok().then(|| QuickClaim(Claim(self)).whole())
    }

    /// How many closed batches have not been harvested.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.head.load(Acquire).wrapping_sub(self.tail.load(Acquire)).min(RING)
    }

    fn at(&self, counter: u32) -> *mut Batch {
        // The remainder is always within the ring.
        self.ring.get((counter % RING) as usize).map_or(core::ptr::null_mut(), UnsafeCell::get)
    }

    /// The oldest closed batch.
    ///
    /// # Safety
    /// Only for the harvester, which is one thread at a time.
    #[expect(clippy::mut_from_ref, reason = "the harvester owns closed batches")]
    pub unsafe fn oldest(&self) -> Option<&mut Batch> {
        let tail = self.tail.load(Relaxed);
        if self.head.load(Acquire) == tail {
            return None;
        }
        // SAFETY: closed batches are left alone by the launching side until `tail` passes them.
        unsafe { self.at(tail).as_mut() }
    }

    /// Lets the oldest batch go.
    ///
    /// # Safety
    /// Only for the harvester, and only after [`Stream::oldest`] gave one.
    pub unsafe fn done(&self) {
        self.tail.store(self.tail.load(Relaxed).wrapping_add(1), Release);
    }
}

impl<'a> QuickClaim<'a> {
    /// What may be launched without asking.
    #[inline]
    pub fn quick(&mut self) -> &mut Quick {
        self.0.quick()
    }

    /// Enters what was launched without asking into the batch.
    pub fn whole(mut self) -> Claim<'a> {
        // SAFETY: as in `Claim::quick`, beside which `Claim::open` gives other parts of the stream.
        let quick = unsafe { &mut *self.0.0.quick.get() };
        let (kinds, nanos) = quick.launched();
        if !kinds.is_empty() {
            let (batch, open) = self.0.open();
            kinds.iter().for_each(|&kind| batch.add(kind));
            batch.expected += nanos;
            open.had.nanos += nanos;
            open.idle_from += nanos;
            open.unasked = true;
        }
        quick.end();
        self.0
    }
}

impl Claim<'_> {
    /// What may be launched without asking, from the next launch on.
    #[inline]
    pub fn quick(&mut self) -> &mut Quick {
        // SAFETY: the claim is the only way here.
        unsafe { &mut *self.0.quick.get() }
    }

    /// The batch being filled, and what is known of it.
    #[inline]
    pub fn open(&mut self) -> (&mut Batch, &mut Open) {
        // SAFETY: the claim is the only way here, and the batch at `head` is not harvested before it is closed.
        unsafe { (&mut *self.0.at(self.0.head.load(Relaxed)), &mut *self.0.mine.get()) }
    }

    /// Hands the batch to the harvester; the next one is empty. The caller has made sure that [`Stream::waiting`] is below [`RING`] - 1.
    pub fn close(&mut self) {
        self.0.head.store(self.0.head.load(Relaxed).wrapping_add(1), Release);
        self.open().0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering::Relaxed;

    fn stream() -> Box<Stream> {
        // SAFETY: all zero is a free stream.
        Box::new(unsafe { std::mem::zeroed() })
    }

    /// A short wait that lets others run, also on a busy machine.
    fn pause() {
        std::thread::sleep(std::time::Duration::from_micros(20));
    }

    #[test]
    fn every_batch_gets_across_once_and_whole() {
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
                            if stream.waiting() < RING - 1
                                && let Some(mut claim) = stream.claim()
                                && stream.waiting() < RING - 1
                            {
                                let (batch, _) = claim.open();
                                (batch.expected, batch.late, batch.count) = (number, number, 1);
                                claim.close();
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
                let last = &mut seen[usize::from(batch.expected > 1_000_000)];
                if (batch.expected, batch.late, batch.count) != (*last + 1, *last + 1, 1) {
                    wrong = Some((batch.expected, batch.late, batch.count, *last));
                }
                *last += 1;
                // SAFETY: as above.
                unsafe { stream.done() };
            }
            failed.store(wrong.is_some(), Relaxed);
        });
        assert_eq!(wrong, None);
        assert_eq!(stream.waiting(), 0);
    }

    #[test]
    fn one_claim_at_a_time() {
        let stream = stream();
        let claim = stream.claim();
        assert!(claim.is_some() && stream.claim().is_none() && stream.visit().is_none());
        drop(claim);
        let visit = stream.visit();
        assert!(visit.is_some() && stream.claim().is_none() && stream.visit().is_none());
        drop(visit);
        assert!(stream.claim().is_some());
    }
}
