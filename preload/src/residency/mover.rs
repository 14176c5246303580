//! The thread that moves the process's memory to the host when the arbiter says so, and back before the next call that needs it.

use core::ffi::c_void;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use vgpu_region::limits::{LogLevel, Turn};

use crate::loader::driver::CaptureRelaxed;
use crate::loader::threads;
use crate::memory::objects::captures;
use crate::os::log::Throttle;
use crate::os::{clock, futex, log};
use crate::residency::block::Block;
use crate::residency::blocks;
use crate::residency::counters::{self, bytes_on};
use crate::residency::gate::Gate;
use crate::residency::host_memory::HostMemory;
use crate::residency::mappings;
use crate::residency::orders::Orders;
use crate::residency::room::Request;
use crate::residency::transfer::{self, MovedIn};
use crate::residency::within;
use crate::session::{Gpu, Session};
use vgpu_cuda_abi::cuda::{DEINITIALIZED, Device, SUCCESS};

/// Sleep between two looks while calls are under way, in nanoseconds.
const POLL_NS: i64 = 50_000;
/// Sleep before another try to follow an order, in nanoseconds.
const RETRY_NS: u64 = 1_000_000;
/// Longest sleep while the memory is on the device, in nanoseconds. A process without a call for so long is idle.
const IDLE_NS: u64 = 1_000_000_000;
/// Longest sleep while the memory is on the host, in nanoseconds.
const OUT_NS: u64 = 20_000_000;
/// Sleep after the arbiter found no room, in nanoseconds.
const NO_ROOM_NS: i64 = 100_000_000;
/// Time after which a call that waited for the memory, and did not come, has given up, in nanoseconds.
const WANTED_NS: u64 = 100_000_000;
/// Time without room from which on a process that comes back says so, in nanoseconds.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Limits the log lines about moves that failed.
static FAILED: Throttle = Throttle::new();

/// Starts the thread, unless the process has it. Returns false if it cannot have one.
pub fn start_once() -> bool {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, AcqRel) {
        return true;
    }
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
    let (Some(gate), Some(session)) = (crate::residency::gate::get(), crate::session::ready()) else { return core::ptr::null_mut() };
    // Nothing that this thread does invalidates a capture of the program's.
    let _relaxed = CaptureRelaxed::enter();
    gate.begin(session.membership.slot());
    let now = clock::monotonic();
    let mut mover =
        Mover { gate, session, host: HostMemory::new(), called: (gate.calls(), now), chosen: 0, copied_ahead: None, came_back: now };
    let changes = &session.limits.turn_changes;
    loop {
        // Read before the orders: a change in between ends the sleep at once.
        let seen = changes.load(Acquire);
        let sleep = mover.step();
        if sleep != 0 {
            futex::wait(changes, seen, sleep);
        }
    }
}

/// State of the thread. Times are nanoseconds.
struct Mover {
    /// The process's gate.
    gate: &'static Gate,
    /// The process's session.
    session: &'static Session,
    /// Memory on the host.
    host: HostMemory,
    /// Number of calls so far, and the time since which it is that, or at which an idle process was last looked after.
    called: (u32, u64),
    /// Number of calls at which the program's mappings were last looked at.
    chosen: u32,
    /// Number of calls at which contents were copied ahead. They are void after any other call.
    copied_ahead: Option<u32>,
    /// Time at which the memory last came back.
    came_back: u64,
}

impl Mover {
    /// Returns the arbiter's orders.
    fn orders(&self) -> Orders {
        Orders { gate: self.gate, session: self.session }
    }

    /// Does what is to be done now. Returns the longest sleep until the next step.
    fn step(&mut self) -> u64 {
        let (calls, now) = (self.gate.calls(), clock::monotonic());
        if calls != self.called.0 {
            (self.called, self.copied_ahead) = ((calls, now), None);
        }
        let order = self.orders().pending();
        if self.gate.is_out() {
            return self.step_out(order);
        }
        if self.gate.is_wanted() && now.saturating_sub(self.came_back) > WANTED_NS {
            self.gate.forget_wanted();
        }
        match order {
            Some(turn) if !self.gate.is_wanted() => self.follow(turn),
            Some(_) => RETRY_NS,
            None => {
                self.do_when_idle(now);
                IDLE_NS
            }
        }
    }

    /// The same while the memory is on the host.
    fn step_out(&mut self, order: Option<&'static Turn>) -> u64 {
        match order {
            Some(turn) => {
                self.orders().say_left(turn.leave.load(Acquire));
                0
            }
            // While the order stands the room is somebody else's.
            None if self.gate.is_wanted() && !self.orders().is_ordered() => {
                self.come_back();
                0
            }
            None => OUT_NS,
        }
    }

    /// Ends what waits for an idle GPU, and keeps as much host memory ready as could leave now: while the process is idle, until its next
    /// call; and while others wait for room. An idle process whose room others will need copies its memory there, too.
    fn do_when_idle(&mut self, now: u64) {
        let (is_idle, stands_by) = (now.saturating_sub(self.called.1) >= IDLE_NS, self.orders().stands_by(Turn::MAKE_HOST_MEMORY));
        if !is_idle && !stands_by && !blocks::are_given_up() {
            return;
        }
        let Some(_using) = self.gate.use_contexts() else { return };
        blocks::end_given_up();
        if (!is_idle && !stands_by) || captures::may_go_on() {
            return;
        }
        let (gate, orders, calls) = (self.gate, self.orders(), self.called.0);
        let may_go_on = || (stands_by || gate.calls() == calls) && orders.pending().is_none();
        let has_store = self.prepare(may_go_on);
        if is_idle {
            self.called.1 = now;
            self.host.shrink(may_go_on);
            if has_store {
                self.copy_ahead(calls);
            }
        }
    }

    /// Copies the memory of a process without a call since there were `calls` to the host, where it stays valid until the next call: one
    /// that leaves before that is only taken off the device. A call waits for one batch at most, which is one block if that is larger.
    fn copy_ahead(&mut self, calls: u32) {
        let orders = self.orders();
        let may_go_on = || orders.stands_by(Turn::COPY_AHEAD) && orders.pending().is_none();
        let is_begun = self.copied_ahead == Some(calls);
        if !may_go_on() || is_begun && blocks::all().all(Block::is_stored) {
            return;
        }
        if !is_begun {
            // A call inside the gate may submit more work. The wait is made with the gate open, as the work may itself wait for a call.
            let is_untouched = !self.gate.is_occupied() && self.gate.calls() == calls;
            if !is_untouched || !within::wait_for_all() || blocks::are_given_up() {
                return;
            }
            mappings::choose();
            blocks::forget_stored();
            if blocks::total() > self.host.store().size() {
                return;
            }
            self.copied_ahead = Some(calls);
        }
        let mut outward = transfer::outward(self.host.store());
        while may_go_on() && self.gate.begin_copy(calls) {
            // SAFETY: the gate is closed, no call has entered since the work has ended, and the store is large enough.
            let has_more = unsafe { outward.store_batch() };
            self.gate.end_move(false);
            if !matches!(has_more, Ok(true)) {
                return;
            }
        }
    }

    /// Follows an order to leave, and says so. Returns the sleep until the next step: it may be possible a moment later, and the arbiter
    /// takes the order back if it takes too long.
    fn follow(&mut self, turn: &'static Turn) -> u64 {
        let order = turn.leave.load(Acquire);
        if order == 0 || !self.leave(order, turn) {
            return RETRY_NS;
        }
        self.orders().say_left(order);
        0
    }

    /// Moves all memory to the host. Returns false if memory stays that could have moved, with the gate open.
    fn leave(&mut self, order: u32, turn: &'static Turn) -> bool {
        let gate = self.gate;
        let Some(_using) = gate.use_contexts() else { return false };
        // Host memory takes longer to make than to fill: the process works on meanwhile.
        let may_go_on = || turn.leave.load(Acquire) == order && gate.arbiter_lives();
        if captures::may_go_on() || within::must_stay() || !self.prepare(may_go_on) || !gate.close(order, turn) {
            return false;
        }
        if !self.drain() || !gate.begin_move_out() {
            gate.stay();
            return false;
        }
        let begin = clock::monotonic();
        // SAFETY: the gate is closed, the work has ended, and the store is large enough.
        let has_moved = unsafe { transfer::move_out(self.host.store()) };
        if !has_moved && FAILED.allow() {
            log::line(LogLevel::Warn, format_args!("memory could not be moved to the host: it stays on the GPU"));
        }
        counters::publish_out(self.session);
        counters::count_move(self.session, true, begin);
        let is_out = blocks::all().any(Block::is_away);
        gate.end_move(is_out);
        // A process without memory that can move has left, too: the others of its container are not waited for in vain.
        has_moved || is_out
    }

    /// Waits for calls and for the GPU, with the gate closed. Returns false if the memory has to stay.
    fn drain(&self) -> bool {
        while self.gate.is_occupied() {
            if !self.gate.is_leaving() || !self.gate.order_stands() {
                return false;
            }
            clock::nap(POLL_NS);
        }
        if !within::wait_for_all() {
            return false;
        }
        // Without a call since the copy ahead, the blocks and their contents are the same.
        if self.copied_ahead != Some(self.gate.calls()) {
            blocks::end_given_up();
            mappings::choose();
            blocks::forget_stored();
        }
        // More may have been allocated while there was made room for what there was.
        blocks::total() <= self.host.store().size() && self.gate.order_stands()
    }

    /// Moves all memory back to the device. If there is no room, it asks for some, and tries again later. Returns with the memory still on the
    /// host if there is an order.
    fn come_back(&mut self) {
        let (mut request, begin) = (None, clock::monotonic());
        let status = loop {
            self.gate.tell_of_calls();
            // The others may have left by the end of this try: the rest has its room then.
            let was_served = self.session.gpus().iter().any(|gpu| self.orders().is_served(gpu.device));
            self.gate.begin_move_in();
            // SAFETY: the gate is closed, and the blocks were moved out to the store.
            let move_in = || unsafe { transfer::move_in(self.host.store()) };
            let device = match self.without_room().map_or_else(move_in, MovedIn::NoRoom) {
                MovedIn::All => break SUCCESS,
                MovedIn::Failed(status) => break status,
                MovedIn::NoRoom(device) => device,
            };
            let is_ordered = self.orders().is_ordered();
            if is_ordered || !was_served && !self.orders().is_served(device) {
                // SAFETY: the gate is closed, and the move has waited for its copies.
                unsafe { blocks::take_back_off() };
            }
            counters::publish_out(self.session);
            self.gate.end_move(true);
            if is_ordered {
                return;
            }
            if !self.ask(&mut request, device) {
                if clock::monotonic().saturating_sub(begin) > PATIENCE_NS && FAILED.allow() {
                    log::line(
                        LogLevel::Warn,
                        format_args!("memory on the host waits for room on GPU {device}: no container can make enough"),
                    );
                }
                clock::nap(NO_ROOM_NS);
                request = None;
            }
        };
        if status != SUCCESS {
            // What is lost must not be mapped again: the memory stays where it is.
            within::stay_for_good();
            // At the process's end the driver is gone before the last calls are.
            if status != DEINITIALIZED {
                log::line(LogLevel::Error, format_args!("memory could not be moved back to the GPU: CUDA error {status}"));
            }
        }
        counters::count_move(self.session, false, begin);
        blocks::forget_stored();
        self.session.gpus().iter().for_each(|gpu| gpu.charge.out.store(0, Relaxed));
        self.came_back = clock::monotonic();
        self.gate.end_move(false);
    }

    /// Returns a device with less room than the memory that is away from it needs, unless others are leaving it for this container. A try
    /// would copy what fits and take it off again, which holds up those who work there.
    fn without_room(&self) -> Option<Device> {
        let lacks = |gpu: &&Gpu| bytes_on(gpu, Block::is_away) > within::free_on(gpu) && !self.orders().is_served(gpu.device);
        self.session.gpus().iter().find(lacks).map(|gpu| gpu.device)
    }

    /// Asks for room on a device. Returns false if there will be none.
    fn ask(&self, request: &mut Option<Request<'static>>, device: Device) -> bool {
        let Some(gpu) = self.session.gpu(device) else { return false };
        request.take_if(|request| !request.is_on(device));
        request.get_or_insert_with(|| Request::new(gpu)).ask()
    }

    /// Makes as much host memory as all blocks need, while `may_go_on`. Returns false if they have no room. Contexts may be used.
    fn prepare(&mut self, may_go_on: impl Fn() -> bool) -> bool {
        if self.chosen != self.gate.calls() {
            self.chosen = self.gate.calls();
            mappings::choose();
        }
        let gate = self.gate;
        self.host.grow(self.session, || may_go_on() && !gate.is_ending())
    }
}
