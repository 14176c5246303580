//! The gate: calls of the driver that may touch device memory pass it, and wait at it while the process's memory is away.
//!
//! ```text
//!             mover: order to leave        mover: GPU idle, all calls out         mover: copied, unmapped
//!   IN ─────────────────────────► LEAVING ────────────────────────► MOVING ─────────────────────────► OUT
//!    ▲                               │ order taken back                │ copy failed                   │ a call waits
//!    └───────────────────────────────┴─────────────────────────────────┘◄──────────────────────────────┘
//! ```
//!
//! Copying ahead goes from IN to MOVING and back, for each batch.
//!
//! A call counts itself in before it reads the state, and the mover writes the state before it reads the counts, all sequentially
//! consistent: so at least one of the two sees the other. Counts only grow, so a call costs two additions and no lock.
//!
//! A call that ends a context is inside from before the context is hidden until its records are gone ([`keep_still`]), so the mover never
//! meets half of one. The driver's call passes the gate once more: an order that has closed it by then is declined.
//!
//! The gate is in a page that the kernel clears in a forked child, which has no memory on a GPU: for it the gate is open.

use core::sync::atomic::AtomicPtr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use vgpu_region::limits::{GpuLimit, Turn};
use vgpu_region::region::Slot;

use crate::os::{clock, futex, mmap};
use crate::residency::heart::Heart;
use crate::session::{self, Gpu, Session};
use vgpu_cuda_abi::cuda::Status;

/// The process has no memory that moves. All zero, as in a forked child.
const OPEN: u32 = 0;
/// All memory is on the device.
const IN: u32 = 1;
/// The mover waits for calls and for the GPU. Nothing has moved yet.
const LEAVING: u32 = 2;
/// Memory is moving, out or in, or is copied ahead.
const MOVING: u32 = 3;
/// All memory is on the host.
const OUT: u32 = 4;

/// Longest sleep of a waiting call before it looks again, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 20_000_000;
/// Most looks at figures that change with a move: two seconds.
const MOST_LOOKS: u32 = 100;
/// Longest wait of a context's end for the mover, which may be registering host memory in the context, in nanoseconds.
const MOVER_PATIENCE_NS: u64 = 30_000_000_000;
/// Sleep between two looks at the mover, in nanoseconds.
const MOVER_LOOK_NS: i64 = 100_000;

/// The gate.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Gate {
    /// One of the states above.
    state: AtomicU32,
    /// Number of calls that have entered.
    entered: AtomicU32,
    /// Number of calls that have left.
    exited: AtomicU32,
    /// Not 0 while a call waits for the memory, until the first one has entered.
    wanted: AtomicU32,
    /// Number of moves that have begun or ended.
    moves: AtomicU32,
    /// The process's slot, which tells the host that it is at work; null while the state is [`OPEN`].
    slot: AtomicPtr<Slot>,
    /// Number of the order that is being followed, and the turn that it came with, which takes it back.
    order: (AtomicU32, AtomicPtr<Turn>),
    /// Whether the arbiter lives that gives orders.
    heart: Heart,
    /// Number of calls that are ending contexts.
    ends: AtomicU32,
    /// 1 while the mover uses contexts.
    in_use: AtomicU32,
}

/// The gate of this process; null where the GPUs have no overcommitted memory.
static GATE: AtomicPtr<Gate> = AtomicPtr::new(core::ptr::null_mut());

/// Returns this process's gate; `None` where the GPUs have no overcommitted memory.
#[inline]
pub fn get() -> Option<&'static Gate> {
    // SAFETY: null, or a mapping that is never removed.
    unsafe { GATE.load(Acquire).as_ref() }
}

/// Makes the gate, if a GPU of the session has overcommitted memory.
pub fn make(session: &Session) {
    if get().is_some() || !session.gpus().iter().any(Gpu::is_overcommitted) {
        return;
    }
    let gate: *mut Gate = mmap::allocate();
    // SAFETY: advice on a fresh mapping. Sessions need the same.
    if !gate.is_null() && unsafe { libc::madvise(gate.cast(), size_of::<Gate>(), libc::MADV_WIPEONFORK) } == 0 {
        // Of two threads that come first, one wins. The other's page was never touched.
        _ = GATE.compare_exchange(core::ptr::null_mut(), gate, Release, Relaxed);
    }
}

/// Returns true if memory on this GPU may move.
#[inline]
pub fn is_evictable(gpu: &Gpu) -> bool {
    get().is_some() && gpu.limit.is_some_and(|limit| limit.overcommit.load(Relaxed) == GpuLimit::EVICTABLE)
}

/// Makes a call of the driver that may touch or take device memory: it waits until the process's memory is there.
#[inline(always)]
pub fn pass(call: impl FnOnce() -> Status) -> Status {
    match get() {
        None => call(),
        Some(gate) => gate.pass(call),
    }
}

/// While the returned guard lives, the process's memory is on the device, and the mover uses no context.
pub fn keep_still() -> Option<Still<'static>> {
    let gate = get()?;
    // Counted before the look at the mover, which counts itself before it looks here: one of the two sees the other.
    gate.ends.fetch_add(1, SeqCst);
    let still = Still { _inside: gate.enter(), _ending: Ending(gate) };
    let begin = clock::monotonic();
    // Bounded: the work that the mover waits for may itself wait for this thread.
    while gate.in_use.load(SeqCst) != 0 && clock::monotonic().saturating_sub(begin) < MOVER_PATIENCE_NS {
        gate.stay();
        clock::nap(MOVER_LOOK_NS);
    }
    Some(still)
}

/// See [`keep_still`]. It leaves the gate before the memory may move.
#[derive(Debug)]
pub struct Still<'a> {
    /// Keeps the memory on the device.
    _inside: Inside<'a>,
    /// Keeps the mover from contexts.
    _ending: Ending<'a>,
}

/// A call that ends a context; dropping it counts it out.
#[derive(Debug)]
struct Ending<'a>(&'a Gate);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ends.fetch_sub(1, SeqCst);
    }
}

/// The mover's use of contexts; it ends when this is dropped.
#[derive(Debug)]
pub struct Using<'a>(&'a Gate);

impl Drop for Using<'_> {
    fn drop(&mut self) {
        self.0.in_use.store(0, SeqCst);
    }
}

/// A call inside the gate; dropping it counts it out.
#[derive(Debug)]
struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.exited.fetch_add(1, SeqCst);
    }
}

impl Gate {
    /// See [`pass`].
    #[inline(never)]
    fn pass(&self, call: impl FnOnce() -> Status) -> Status {
        let _inside = self.enter();
        call()
    }

    /// Waits until the memory is there, and counts a call in.
    #[inline]
    fn enter(&self) -> Inside<'_> {
        loop {
            let number = self.entered.fetch_add(1, SeqCst);
            let inside = Inside(self);
            match self.state.load(SeqCst) {
                OPEN => return inside,
                IN => {
                    if self.wanted.load(Relaxed) != 0 {
                        self.wanted.store(0, Relaxed);
                    }
                    // SAFETY: null, or in the region, which is never unmapped while the session lives.
                    if let Some(slot) = unsafe { self.slot.load(Relaxed).as_ref() } {
                        slot.calls.store(number, Relaxed);
                    }
                    return inside;
                }
                _ => {}
            }
            drop(inside);
            self.wait();
        }
    }

    /// Waits until the memory may be there.
    #[cold]
    fn wait(&self) {
        self.wanted.store(1, SeqCst);
        if let Some(session) = session::ready() {
            // The mover sleeps on this word.
            futex::wake(&session.limits.turn_changes);
        }
        let state = self.state.load(SeqCst);
        if state == LEAVING && (self.is_ending() || !self.order_stands()) {
            self.stay();
        } else if state > IN {
            futex::wait(&self.state, state, LOOK_AGAIN_NS);
        }
    }

    /// Starts to count calls: the process's memory may move from now on.
    pub fn begin(&self, slot: &'static Slot) {
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Release);
        // Calls before this one were not told to the host.
        slot.calls.store(self.entered.load(Relaxed).max(1), Relaxed);
        _ = self.state.compare_exchange(OPEN, IN, SeqCst, SeqCst);
    }

    /// Closes the gate to follow an order. Returns false if the memory is not on the device.
    pub fn close(&self, number: u32, turn: &'static Turn) -> bool {
        self.order.0.store(number, Relaxed);
        self.order.1.store(core::ptr::from_ref(turn).cast_mut(), Relaxed);
        self.state.compare_exchange(IN, LEAVING, SeqCst, SeqCst).is_ok()
    }

    /// Returns true while the order that is being followed was not taken back, and its arbiter lives.
    pub fn order_stands(&self) -> bool {
        // SAFETY: null, or a turn in the limits page, which is never unmapped.
        let turn = unsafe { self.order.1.load(Relaxed).as_ref() };
        turn.is_some_and(|turn| turn.leave.load(Acquire) == self.order.0.load(Relaxed)) && self.arbiter_lives()
    }

    /// Returns false if the arbiter's heart does not beat any more: its orders are void.
    pub fn arbiter_lives(&self) -> bool {
        let Some(session) = session::ready() else { return false };
        let turns = session.gpus().iter().filter_map(|gpu| session.limits.turn(gpu.uuid));
        // One arbiter writes all of them.
        let beat = turns.fold(0, |sum: u32, turn| sum.wrapping_add(turn.beat.load(Relaxed)));
        self.heart.is_alive(beat, clock::monotonic())
    }

    /// Begins to use contexts: for the mover, while the memory is on the device. `None` while a context is being ended.
    pub fn use_contexts(&self) -> Option<Using<'_>> {
        self.in_use.store(1, SeqCst);
        let using = Using(self);
        (!self.is_ending()).then_some(using)
    }

    /// Returns true while a context is being ended.
    pub fn is_ending(&self) -> bool {
        self.ends.load(SeqCst) != 0
    }

    /// Returns true while the gate is closed and nothing has moved yet.
    pub fn is_leaving(&self) -> bool {
        self.state.load(SeqCst) == LEAVING
    }

    /// Returns true while a call is inside.
    pub fn is_occupied(&self) -> bool {
        // Read in this order: a call that enters in between counts as inside.
        let exited = self.exited.load(SeqCst);
        self.entered.load(SeqCst) != exited
    }

    /// Opens the gate again, if nothing has moved.
    pub fn stay(&self) {
        if self.state.compare_exchange(LEAVING, IN, SeqCst, SeqCst).is_ok() {
            futex::wake(&self.state);
        }
    }

    /// Begins to move. Returns false if the gate was opened meanwhile.
    pub fn begin_move_out(&self) -> bool {
        self.moves.fetch_add(1, SeqCst);
        self.state.compare_exchange(LEAVING, MOVING, SeqCst, SeqCst).is_ok()
    }

    /// Forgets that a call waits: the memory has been there for long, and the call has given up.
    pub fn forget_wanted(&self) {
        self.wanted.store(0, SeqCst);
    }

    /// Ends a move: the memory is on the device, or on the host.
    pub fn end_move(&self, is_out: bool) {
        self.moves.fetch_add(1, SeqCst);
        self.state.store(if is_out { OUT } else { IN }, SeqCst);
        futex::wake(&self.state);
    }

    /// Closes the gate to copy memory that stays on the device. Returns false, with the gate open, if a call has entered since there were
    /// `calls`, or is inside.
    pub fn begin_copy(&self, calls: u32) -> bool {
        if self.state.compare_exchange(IN, MOVING, SeqCst, SeqCst).is_err() {
            return false;
        }
        let is_untouched = self.calls() == calls && !self.is_occupied();
        if !is_untouched {
            self.end_move(false);
        }
        is_untouched
    }

    /// Begins to move in.
    pub fn begin_move_in(&self) {
        self.moves.fetch_add(1, SeqCst);
        self.state.store(MOVING, SeqCst);
    }

    /// Returns true while the memory is on the host.
    pub fn is_out(&self) -> bool {
        self.state.load(SeqCst) == OUT
    }

    /// Returns true while a call waits for the memory.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst) != 0
    }

    /// Tells the host that the process is at work, although its calls wait.
    pub fn tell_of_calls(&self) {
        // SAFETY: null, or in the region, which is never unmapped while the session lives.
        if let Some(slot) = unsafe { self.slot.load(Relaxed).as_ref() } {
            slot.calls.store(self.calls(), Relaxed);
        }
    }

    /// Returns the number of calls that have entered, and of tries of calls that wait.
    pub fn calls(&self) -> u32 {
        self.entered.load(SeqCst)
    }
}

/// Returns what `read` returns while no memory moves, or waits until none does. For figures that change with a move. Bounded: memory that
/// finds no room to come back to begins to move again and again, without a change of the figures.
pub fn at_rest<T>(read: impl Fn() -> T) -> T {
    let Some(gate) = get() else { return read() };
    for _ in 0..MOST_LOOKS {
        let before = gate.moves.load(SeqCst);
        if gate.state.load(SeqCst) != MOVING {
            let value = read();
            if gate.moves.load(SeqCst) == before {
                return value;
            }
        }
        futex::wait(&gate.state, MOVING, LOOK_AGAIN_NS);
    }
    read()
}
