//! The thread that tells the GPU's own scheduler what the arbiter says: the time slice of the process's groups that compute, and whether they
//! run.
//!
//! It sleeps until the arbiter changes something, so it also acts while the program's threads wait for their work. Without an arbiter, or
//! once that has stopped, they run with the driver's own slice.
//!
//! It also notices that the process was frozen: all of its threads stood still then, this one too.

use core::ffi::c_void;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use vgpu_region::budget::Budget;
use vgpu_region::limits::{LogLevel, Turn};

use crate::channels::groups::{self, Outcome};
use crate::compute::cuda_engine::Cuda;
use crate::compute::streams::State;
use crate::loader::threads;
use crate::os::{clock, log};
use crate::session::Session;
use vgpu_gpu_limiter::account::{Account, WATCH_NS};
use vgpu_gpu_limiter::engine::Engine;
use vgpu_gpu_limiter::meter::Meter;
use vgpu_gpu_limiter::tuning::SWITCH_US;

/// Longest sleep while channels are off, in nanoseconds: if the arbiter stops, they are switched on.
const OFF_NS: u64 = 50_000_000;
/// Longest sleep in an open turn, in nanoseconds. The arbiter has to learn whether the program still waits for its work.
const OPEN_NS: u64 = 5_000_000;

/// Number of the program's threads that wait for work.
pub static WAITING_THREADS: AtomicU32 = AtomicU32::new(0);

/// What was last applied on one GPU.
#[derive(Clone, Copy, Default)]
struct Applied {
    /// The driver allows the controls; `None` before the first attempt.
    is_allowed: Option<bool>,
    /// Word of the turn.
    word: u32,
    /// The channels are off.
    is_off: bool,
}

/// Starts the thread, unless the process has it.
pub fn start_once(state: &'static State) {
    // SAFETY: the state is never freed.
    if state.needs_switcher() && !unsafe { threads::start(run, core::ptr::from_ref(state).cast_mut().cast()) } {
        log::line(LogLevel::Warn, format_args!("no thread for the GPU's scheduler: time is shared by holding launches back"));
    }
}

/// The thread.
extern "C" fn run(state: *mut c_void) -> *mut c_void {
    // SAFETY: `start_once` passes a state, which is never freed.
    let state = unsafe { &*state.cast::<State>() };
    let mut applied = [Applied::default(); vgpu_region::MAX_GPUS];
    let Some(session) = state.session() else { return core::ptr::null_mut() };
    let changes = &session.limits.turn_changes;
    loop {
        // Read before the turns: a change in between ends the sleep at once.
        let seen = changes.load(Acquire);
        let accounts = state.accounts().zip(&mut applied);
        let sleep_ns = accounts.filter_map(|(account, applied)| Some(apply(state, account?, applied))).min();
        Cuda { context: core::ptr::null_mut() }.wait_for_change(changes, seen, sleep_ns.unwrap_or(WATCH_NS));
    }
}

/// Applies what the arbiter says about one GPU. Returns the longest time until the next look at its heartbeat, in nanoseconds.
fn apply(state: &'static State, account: &'static Account, applied: &mut Applied) -> u64 {
    account.watch(clock::monotonic());
    let (turns, budget) = (&account.turns, account.budget);
    let living = turns.living(clock::monotonic());
    if applied.is_allowed == Some(false) {
        // The driver may have refused while the channels were off: they must not stay so.
        return if !applied.is_off || !matches!(switch(account, false, applied), Outcome::Refused(_)) { WATCH_NS } else { OFF_NS };
    }
    if applied.is_allowed.is_none() && living.is_none() {
        return WATCH_NS;
    }
    let outcome = match applied.is_allowed {
        None => groups::try_switch(turns.uuid),
        Some(_) => Outcome::Done,
    };
    // Read after the probe, which takes 30 ms when many processes begin at once. Below, `is_switched` lets launches pass: a turn that was
    // closed meanwhile has to be applied first.
    let (word, slice_us) = living.map_or((0, 0), |turn| (turn.word.load(Acquire), turn.slice_us.load(Relaxed)));
    let is_off = Turn::state(word) == Turn::CLOSED;
    // While the channels are off the slice has no meaning. Where dozens of tenants take turns, setting all of theirs holds the driver's lock
    // for 30 to 80 ms at each change, and every switch waits for that (H200).
    let outcome = if !is_off && is_applied(outcome, applied) { groups::set_slice(turns.uuid, slice_us) } else { outcome };
    let outcome = if is_applied(outcome, applied) { switch(account, is_off, applied) } else { outcome };
    let is_allowed = is_applied(outcome, applied);
    if applied.is_allowed != Some(is_allowed) {
        applied.is_allowed = Some(is_allowed);
        turns.is_switched.store(is_allowed, Relaxed);
        budget.controls.store(if is_allowed { Budget::SWITCHES } else { Budget::REFUSED }, Relaxed);
        if !is_allowed {
            log::line(
                LogLevel::Warn,
                format_args!(
                    "the GPU's scheduler cannot be told about this process ({outcome:?}): time is shared by holding launches back"
                ),
            );
        }
    }
    // While its turn is closed, the tenant asks for the next one; while it is open, it says that it still needs this one.
    let wants = match Turn::state(word) {
        Turn::CLOSED => applied.word != word && has_work(state, account),
        Turn::OPEN => WAITING_THREADS.load(Relaxed) != 0 && has_work(state, account),
        _ => false,
    };
    if wants {
        budget.want.store(u64::from(word), Relaxed);
    } else if Turn::state(word) == Turn::OPEN {
        budget.want.store(0, Relaxed);
    }
    if is_allowed && applied.word != word {
        budget.drained.store(u64::from(word), Relaxed);
    }
    applied.word = word;
    if !is_allowed || living.is_none() {
        return WATCH_NS;
    }
    match (is_off, slice_us) {
        (true, _) => OFF_NS,
        (false, _) if Turn::state(word) == Turn::OPEN => OPEN_NS,
        (false, _) => WATCH_NS,
    }
}

/// Returns true if a control was applied. A process that was allowed controls before may have destroyed all of its contexts: then there is
/// nothing to control until it makes another one.
fn is_applied(outcome: Outcome, applied: &Applied) -> bool {
    match outcome {
        Outcome::Done => true,
        Outcome::NoGroups => applied.is_allowed == Some(true),
        Outcome::Refused(_) => false,
    }
}

/// Switches the process's channels off or on, and tells the account when.
///
/// No function of CUDA is called here: one that waits for room in a channel that is off would wait for this thread.
fn switch(account: &Account, off: bool, applied: &mut Applied) -> Outcome {
    let begin = clock::monotonic();
    let outcome = groups::switch(account.turns.uuid, off);
    if !matches!(outcome, Outcome::Refused(_)) && core::mem::replace(&mut applied.is_off, off) != off {
        // The GPU stops, or starts, at some time during the call. A longer one has waited for other calls first.
        let end = clock::monotonic();
        let at = begin.max(end.saturating_sub(SWITCH_US * 1_000)).midpoint(end);
        if off { account.off_times.begin(at) } else { account.off_times.end(at) }
    }
    outcome
}

/// Returns true if the process has work on a GPU, as far as its threads have noticed.
fn has_work(state: &'static State, account: &'static Account) -> bool {
    let is_open = |meter: &Meter| core::ptr::eq(meter.account, account) && meter.has_open_batch();
    account.in_flight_ns.load(Acquire) != 0 || state.open_meters().any(is_open)
}

impl State {
    /// Returns this process's session.
    fn session(&self) -> Option<&'static Session> {
        crate::session::ready().filter(|session| self.is_of(session))
    }
}
