//! The thread that moves the process's memory to the host when the arbiter says so, and back before the next call that needs it.

use core::ffi::c_void;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use vgpu_region::ledger::pages;
use vgpu_region::limits::{LogLevel, Turn};

use crate::loader::{driver, threads};
use crate::memory::objects::{captures, context_table};
use crate::os::log::Throttle;
use crate::os::{clock, futex, log};
use crate::residency::blocks::{self, Block};
use crate::residency::gate::{self, Gate};
use crate::residency::room::Request;
use crate::residency::store::Store;
use crate::session::{self, Gpu, Session};
use vgpu_cuda_abi::cuda::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};

/// Sleep between two looks while calls are under way, in nanoseconds.
const POLL_NS: i64 = 50_000;
/// Longest sleep while the memory is on the device, in nanoseconds. A process without a call for so long is idle.
const IDLE_NS: u64 = 1_000_000_000;
/// Longest sleep while the memory is on the host, in nanoseconds.
const OUT_NS: u64 = 20_000_000;
/// Sleep after the arbiter found no room, in nanoseconds.
const NO_ROOM_NS: i64 = 100_000_000;

/// Limits the log lines about moves that failed.
static FAILED: Throttle = Throttle::new();

/// Starts the thread, unless the process has it. Returns false if it cannot have one.
pub fn start_once(gate: &'static Gate, session: &'static Session) -> bool {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, AcqRel) {
        return true;
    }
    gate.begin(session.membership.slot());
    // SAFETY: the thread takes nothing.
    let is_started = unsafe { threads::start(run, core::ptr::null_mut()) };
    if !is_started {
        STARTED.store(false, Release);
        log::line(LogLevel::Warn, format_args!("no thread to move memory to the host: memory of this process stays on the GPU"));
    }
    is_started
}

/// The thread.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let (Some(gate), Some(session)) = (gate::get(), session::ready()) else { return core::ptr::null_mut() };
    let mut mover = Mover { gate, session, store: Store::new() };
    let changes = &session.limits.turn_changes;
    let mut calls = gate.calls();
    loop {
        // Read before the orders: a change in between ends the sleep at once.
        let seen = changes.load(Acquire);
        if gate.is_out() && gate.is_wanted() {
            mover.come_back();
        } else if let Some(turn) = mover.order().filter(|_| !gate.is_wanted()) {
            mover.follow(turn);
        } else {
            let before = core::mem::replace(&mut calls, gate.calls());
            if before == calls && !gate.is_out() {
                mover.prepare();
            }
            futex::wait(changes, seen, if gate.is_out() { OUT_NS } else { IDLE_NS });
        }
    }
}

/// State of the thread.
struct Mover {
    /// The process's gate.
    gate: &'static Gate,
    /// The process's session.
    session: &'static Session,
    /// Memory on the host.
    store: Store,
}

impl Mover {
    /// Returns the turn with an order that was not followed yet.
    fn order(&self) -> Option<&'static Turn> {
        let left = self.session.membership.slot().left.load(Relaxed);
        let turns = self.session.gpus().iter().filter_map(|gpu| self.session.limits.turn(gpu.uuid));
        turns.into_iter().find(|turn| ![0, left].contains(&turn.leave.load(Acquire)))
    }

    /// Follows an order to leave, and says so.
    fn follow(&mut self, turn: &'static Turn) {
        let order = turn.leave.load(Acquire);
        let is_gone = self.gate.is_out() || (self.gate.close(order, &turn.leave) && self.leave());
        if is_gone {
            self.session.membership.slot().left.store(order, Release);
        } else {
            // It may be possible a moment later; the arbiter takes the order back if it takes too long.
            clock::nap(POLL_NS * 20);
        }
    }

    /// Moves all memory to the host. The gate is closed. Returns false if the memory stays, with the gate open again.
    fn leave(&mut self) -> bool {
        while self.gate.is_occupied() && self.gate.order_stands() {
            clock::nap(POLL_NS);
        }
        // A wait for the context would invalidate a capture.
        let is_ready = self.gate.order_stands() && !captures::may_go_on() && each_context(|| driver_status(driver::context_synchronize));
        if !is_ready || !self.gate.begin_move_out() {
            self.gate.stay();
            return false;
        }
        let is_out = self.prepare()
            && self.copy(|to, from, bytes| {
                // SAFETY: a block of this size, and room for it in the store, which is registered.
                unsafe { driver::copy_to_host(to, from, bytes, core::ptr::null_mut()) }
            });
        if is_out {
            // SAFETY: all contents were copied, and the gate is closed.
            unsafe { blocks::take_all_off() };
            self.count_out();
        } else if FAILED.allow() {
            log::line(LogLevel::Warn, format_args!("memory could not be moved to the host: it stays on the GPU"));
        }
        self.gate.end_move(is_out);
        is_out
    }

    /// Moves all memory back to the device. If there is no room, it asks for some, and tries again later.
    fn come_back(&mut self) {
        let mut request = None;
        let status = loop {
            self.gate.begin_move_in();
            let status = blocks::put_all_back().err().unwrap_or(SUCCESS);
            let full = self.session.gpus().iter().find(|gpu| gate::is_evictable(gpu)).filter(|_| status == OUT_OF_MEMORY);
            let Some(gpu) = full else { break status };
            self.gate.end_move(true);
            if !request.get_or_insert_with(|| Request::new(gpu)).ask() {
                clock::nap(NO_ROOM_NS);
                request = None;
            }
        };
        let is_back = status == SUCCESS
            && self.copy(|from, to, bytes| {
                // SAFETY: a block of this size, which is mapped again, and its contents in the store.
                unsafe { driver::copy_from_host(to, from, bytes, core::ptr::null_mut()) }
            });
        if !is_back {
            // A fault tells the program that its memory is lost; wrong words would not.
            // SAFETY: the gate is closed, and the contents are lost.
            unsafe { blocks::take_all_off() };
            if FAILED.allow() {
                log::line(LogLevel::Error, format_args!("memory could not be moved back to the GPU: CUDA error {status}"));
            }
        }
        self.session.gpus().iter().for_each(|gpu| gpu.charge.out.store(0, Relaxed));
        self.gate.end_move(false);
    }

    /// Makes room on the host for all blocks. Returns false if there is none.
    fn prepare(&mut self) -> bool {
        let total = blocks::all().map(|block| block.bytes).sum();
        total <= self.store.size() || blocks::all().next().is_none_or(|block| in_context(block, || self.store.prepare(total)))
    }

    /// Copies all blocks with `copy(place in the store, address, bytes)`, and waits. Returns false if a copy failed.
    fn copy(&self, copy: impl Fn(*mut c_void, DevicePtr, usize) -> Status) -> bool {
        let mut offset = 0;
        let are_begun = blocks::all().all(|block| {
            let place = self.store.at(offset);
            offset += block.bytes;
            in_context(block, || copy(place, block.address, block.bytes) == SUCCESS)
        });
        are_begun & each_context(|| driver_status(driver::context_synchronize))
    }

    /// Publishes how much is on the host.
    fn count_out(&self) {
        let of = |gpu: &Gpu| {
            let is_there = |block: &Block| context_table::gpu_of(block.context).is_some_and(|there| there.device == gpu.device);
            blocks::all().filter(is_there).map(|block| pages(block.bytes as u64)).sum()
        };
        self.session.gpus().iter().for_each(|gpu| gpu.charge.out.store(of(gpu), Relaxed));
    }
}

/// Returns whether a call of the driver without arguments succeeds.
fn driver_status(call: unsafe fn() -> Status) -> bool {
    // SAFETY: the call takes nothing.
    unsafe { call() == SUCCESS }
}

/// Runs `work` with a block's context current. Returns false without running it if the context is gone.
fn in_context(block: Block, work: impl FnOnce() -> bool) -> bool {
    let Some(context) = context_table::handle_of(block.context) else { return false };
    let mut popped = core::ptr::null_mut();
    // SAFETY: a living context: its end frees its blocks first. The driver writes one handle.
    unsafe {
        if driver::context_push(context) != SUCCESS {
            return false;
        }
        let result = work();
        driver::context_pop(&raw mut popped);
        result
    }
}

/// Runs `work` in each context that has blocks, until it returns false. Returns true if it never did.
fn each_context(work: impl Fn() -> bool) -> bool {
    let mut seen = [false; 256];
    blocks::all().all(|block| {
        let is_new = seen.get_mut(usize::from(block.context)).is_some_and(|seen| !core::mem::replace(seen, true));
        !is_new || in_context(block, &work)
    })
}
