//! The gate: calls of the driver that may touch device memory pass it, and wait at it while the process's memory is away.
//!
//! ```text
//!             mover: order to leave        mover: GPU idle, all calls out         mover: copied, unmapped
//!   IN ─────────────────────────► LEAVING ────────────────────────► MOVING ─────────────────────────► OUT
//!    ▲                               │ order taken back                │ copy failed                   │ a call waits
//!    └───────────────────────────────┴─────────────────────────────────┘◄──────────────────────────────┘
//! ```
//!
//! A call counts itself in before it reads the state, and the mover writes the state before it reads the counts, all sequentially
//! consistent: so at least one of the two sees the other. Counts only grow, so a call costs two additions and no lock.
//!
//! The gate is in a page that the kernel clears in a forked child, which has no memory on a GPU: for it the gate is open.

use core::sync::atomic::AtomicPtr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use vgpu_region::limits::GpuLimit;
use vgpu_region::region::Slot;

use crate::memory::objects::context_table;
use crate::os::{futex, mmap};
use crate::residency::room::Request;
use crate::session::{self, Gpu, Session};
use vgpu_cuda_abi::cuda::{OUT_OF_MEMORY, Status};

/// The process has no memory that moves. All zero, as in a forked child.
const OPEN: u32 = 0;
/// All memory is on the device.
const IN: u32 = 1;
/// The mover waits for calls and for the GPU. Nothing has moved yet.
const LEAVING: u32 = 2;
/// Memory is moving, out or in.
const MOVING: u32 = 3;
/// All memory is on the host.
const OUT: u32 = 4;

/// Longest sleep of a waiting call before it looks again, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 20_000_000;

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
    /// Number of the order that is being followed, and the word that takes it back.
    order: (AtomicU32, AtomicPtr<AtomicU32>),
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

/// Makes a call of the driver that may touch or take device memory: it waits until the process's memory is there, and for room if the
/// device has none.
#[inline(always)]
pub fn pass(call: impl Fn() -> Status) -> Status {
    match get() {
        None => call(),
        Some(gate) => gate.pass(call),
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
    fn pass(&self, call: impl Fn() -> Status) -> Status {
        let mut request = None;
        loop {
            let inside = self.enter();
            let status = call();
            drop(inside);
            // Outside of the gate: two processes that wait for room can both leave.
            if status != OUT_OF_MEMORY || !self.find_room(&mut request) {
                return status;
            }
        }
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
        if state == LEAVING && !self.order_stands() {
            self.stay();
        } else if state > IN {
            futex::wait(&self.state, state, LOOK_AGAIN_NS);
        }
    }

    /// Asks the arbiter for room on the current device. Returns true if the call should be tried again.
    #[cold]
    fn find_room<'a>(&self, request: &mut Option<Request<'a>>) -> bool {
        let current = context_table::current().ok().map(|current| current.gpu);
        let gpu = current.or_else(|| session::ready()?.gpus().iter().find(|gpu| gpu.is_overcommitted()));
        let gpu = gpu.filter(|gpu| gpu.is_overcommitted());
        gpu.is_some_and(|gpu| request.get_or_insert_with(|| Request::new(gpu)).ask())
    }

    /// Starts to count calls: the process's memory may move from now on.
    pub fn begin(&self, slot: &'static Slot) {
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Release);
        _ = self.state.compare_exchange(OPEN, IN, SeqCst, SeqCst);
    }

    /// Closes the gate to follow the order `number` in `word`. Returns false if the memory is not on the device.
    pub fn close(&self, number: u32, word: &'static AtomicU32) -> bool {
        self.order.0.store(number, Relaxed);
        self.order.1.store(core::ptr::from_ref(word).cast_mut(), Relaxed);
        self.state.compare_exchange(IN, LEAVING, SeqCst, SeqCst).is_ok()
    }

    /// Returns true while the order that is being followed was not taken back.
    pub fn order_stands(&self) -> bool {
        // SAFETY: null, or a word of the limits page, which is never unmapped.
        let word = unsafe { self.order.1.load(Relaxed).as_ref() };
        word.is_some_and(|word| word.load(Acquire) == self.order.0.load(Relaxed))
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

    /// Ends a move: the memory is on the device, or on the host.
    pub fn end_move(&self, is_out: bool) {
        self.moves.fetch_add(1, SeqCst);
        self.state.store(if is_out { OUT } else { IN }, SeqCst);
        futex::wake(&self.state);
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

    /// Returns the number of calls that have entered.
    pub fn calls(&self) -> u32 {
        self.entered.load(Relaxed)
    }
}

/// Returns what `read` returns while no memory moves, or waits until none does. For figures that change with a move.
pub fn at_rest<T>(read: impl Fn() -> T) -> T {
    let Some(gate) = get() else { return read() };
    loop {
        let before = gate.moves.load(SeqCst);
        if gate.state.load(SeqCst) != MOVING {
            let value = read();
            if gate.moves.load(SeqCst) == before {
                return value;
            }
        }
        futex::wait(&gate.state, MOVING, LOOK_AGAIN_NS);
    }
}
