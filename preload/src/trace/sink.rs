//! Records of a traced process.
//!
//! Without a trace nothing here is on the path of a call. Launches, copies and waits compare the generation of the limits page with the one
//! that they know, to see a change of limits ([`crate::compute`]): one load of a cache line that is hardly ever written. The start of a
//! trace changes the generation too. Then [`apply`](super::control::apply) puts recorders ([`super::recorders`]) between the hooks and the
//! driver, until the trace ends. Waits for the limit and refusals, which are slow anyway, are recorded where they happen.
//!
//! * [`super::gpu_time`]: when work ran on the GPU, from a pair of events around it.
//! * [`super::names`]: names of kernels, number of kernels in graphs.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32};

use vgpu_region::limits::LogLevel;
use vgpu_region::map;
use vgpu_region::trace::{CAPTURED, FAILED, Kind, Ring, TIMED, What};

use crate::entry_points;
use crate::entry_points::names::COUNT;
use crate::loader::driver;
use crate::os::{clock, log, mmap};
use crate::session;
use crate::session::Session;
use crate::trace::call::Call;
use crate::trace::gpu_time::{Lanes, Timer};
use crate::trace::names;
use vgpu_cuda_abi::cuda::{SUCCESS, Status};

/// State of this process's trace. Like the session it belongs to one process. All zero is valid.
pub struct Trace {
    /// Session that the trace belongs to.
    session: AtomicPtr<Session>,
    /// Ring of this process.
    ring: AtomicPtr<Ring>,
    /// This process.
    pid: AtomicU32,
    /// Place of each entry's counter, as [`Ring::call`] returned it; 0 if unknown.
    calls: [AtomicU8; COUNT],
    /// Timers of work on the GPU.
    lanes: Lanes,
    /// Names of kernels.
    names: names::Names,
}

/// This process's trace; after a fork the parent's, until the child starts its own.
static TRACE: AtomicPtr<Trace> = AtomicPtr::new(core::ptr::null_mut());

impl Trace {
    /// Returns the ring; `None` before it is set.
    pub fn ring(&self) -> Option<&'static Ring> {
        // SAFETY: a ring is never unmapped.
        unsafe { self.ring.load(Acquire).as_ref() }
    }
}

/// Returns this process's trace, if it was ever traced.
pub fn current() -> Option<&'static Trace> {
    // SAFETY: a trace is never freed.
    let trace = unsafe { TRACE.load(Acquire).as_ref() }?;
    // A forked child finds its parent's trace here until it has a session of its own.
    core::ptr::eq(trace.session.load(Relaxed), session::ready()?).then_some(trace)
}

/// Starts this process's trace. `None` if it cannot be recorded.
pub fn start(session: &'static Session) -> Option<&'static Trace> {
    let ring = match map::ring(session::region_path(), session.membership.index) {
        Ok(ring) => ring?,
        Err(error) => {
            log::line(LogLevel::Warn, format_args!("this process is not traced: {error}"));
            return None;
        }
    };
    let trace: *mut Trace = mmap::allocate();
    let before = TRACE.load(Acquire);
    // SAFETY: fresh zeroed memory, or null; the calls take nothing.
    let (trace, pid) = unsafe { (trace.as_ref()?, libc::getpid() as u32) };
    trace.ring.store(core::ptr::from_ref(ring).cast_mut(), Relaxed);
    trace.pid.store(pid, Relaxed);
    trace.session.store(core::ptr::from_ref(session).cast_mut(), Relaxed);
    // If two threads start the trace, one wins. Both have the same ring, and the other's memory was never used.
    if TRACE.compare_exchange(before, core::ptr::from_ref(trace).cast_mut(), AcqRel, Acquire).is_ok() {
        ring.header.begin(pid, clock::realtime().wrapping_sub(clock::monotonic()));
        let mut name = [0u64; 2];
        // SAFETY: the kernel writes at most 16 bytes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let what = What { kind: Kind::Start as u8, ..What::default() };
        push(trace, what, (clock::monotonic(), 0), name);
        log::line(LogLevel::Info, format_args!("this process is traced"));
    }
    current()
}

/// Writes a record and returns its number. Times are in nanoseconds; `values` are place and amount.
fn push(trace: &Trace, what: What, (begin, took): (u64, u64), values: [u64; 2]) -> Option<u64> {
    let (number, record) = trace.ring()?.take()?;
    // SAFETY: the call takes nothing and cannot fail.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    record.begin.store(begin, Relaxed);
    record.took.store(took, Relaxed);
    record.who.store(u64::from(trace.pid.load(Relaxed)) | thread << 32, Relaxed);
    record.what.store(what.word(), Relaxed);
    record.place.store(values[0], Relaxed);
    record.amount.store(values[1], Relaxed);
    record.gpu_begin.store(0, Relaxed);
    record.gpu_took.store(0, Relaxed);
    record.sequence.store(number.wrapping_add(1), Release);
    Some(number)
}

/// Call in progress, from [`begin`] to [`end`].
pub struct Recording {
    /// Trace that records the call; `None` if there is none.
    trace: Option<&'static Trace>,
    /// Entry of the table.
    entry: usize,
    /// What is recorded.
    call: Call,
    /// Place of a kernel's name, or the direction of a copy.
    name: u16,
    /// Begin, in nanoseconds of `CLOCK_MONOTONIC`.
    begin: u64,
    /// Timer of the work.
    timer: Option<Timer>,
    /// Whether the work is captured instead of run.
    is_captured: bool,
}

/// Begins the record of a call, before the driver's function.
pub fn begin(entry: usize, call: Call) -> Recording {
    let trace = current();
    let mut recording = Recording { trace, entry, call, name: 0, begin: 0, timer: None, is_captured: false };
    if let Some(trace) = trace {
        match call.kind {
            Kind::Kernel => recording.name = trace.ring().map_or(0, |ring| trace.names.of(ring, call.place)),
            _ => recording.name = call.name,
        }
        if call.ends_contexts {
            trace.lanes.close(trace.ring());
        }
        if call.is_work {
            recording.is_captured = driver::is_captured(call.stream);
            if !recording.is_captured {
                recording.timer = trace.lanes.start(trace.ring(), call.stream);
            }
        }
        recording.begin = clock::monotonic();
    }
    recording
}

/// Ends the record of a call, with the status that the driver returned.
pub fn end(recording: Recording, status: Status) {
    let Some(trace) = recording.trace else { return };
    let (Some(ring), Some(known)) = (trace.ring(), trace.calls.get(recording.entry)) else { return };
    let took = clock::monotonic().saturating_sub(recording.begin);
    let mut call = known.load(Relaxed);
    if call == 0 {
        call = ring.call(entry_points::names::name_of(recording.entry).to_bytes());
        known.store(call, Relaxed);
    }
    count(ring, call, took);
    if recording.call.forgets_names && status == SUCCESS {
        trace.names.forget();
    }
    if recording.call.kind == Kind::Other {
        return;
    }
    let timer = match recording.timer {
        Some(timer) if status == SUCCESS => timer.stop(recording.call.stream),
        Some(timer) => {
            timer.discard();
            None
        }
        None => None,
    };
    let mut flags = if timer.is_some() { TIMED } else { 0 };
    flags |= if recording.is_captured { CAPTURED } else { 0 } | if status == SUCCESS { 0 } else { FAILED };
    let context = timer.as_ref().map_or(0, Timer::context);
    let what = What { kind: recording.call.kind as u8, flags, context, call, name: recording.name };
    let number = push(trace, what, (recording.begin, took), recording.call.values(status));
    if let Some(timer) = timer {
        match number {
            Some(number) => timer.assign(number),
            None => timer.discard(),
        }
    }
    trace.lanes.harvest(ring, recording.call.kind == Kind::Synchronize);
}

/// Counts a call at a place of the ring, and returns the place. `took` is in nanoseconds.
fn count(ring: &Ring, call: u8, took: u64) -> u8 {
    if let Some(counter) = usize::from(call).checked_sub(1).and_then(|place| ring.calls.get(place)) {
        counter.count.fetch_add(1, Relaxed);
        counter.took.fetch_add(took, Relaxed);
    }
    call
}

/// Records something other than a call of the driver that lasted from `begin` to `end`, in nanoseconds of `CLOCK_MONOTONIC`. `place` and
/// `amount` are as [`Kind`] says.
#[cold]
pub fn span(kind: Kind, place: u64, begin: u64, end: u64, amount: u64) {
    let Some(trace) = traced() else { return };
    let took = end.saturating_sub(begin);
    let mut what = What { kind: kind as u8, ..What::default() };
    if kind == Kind::Init {
        // The call began before there was a trace, so it is counted here.
        what.call = trace.ring().map_or(0, |ring| count(ring, ring.call(b"cuInit"), took));
    }
    push(trace, what, (begin, took), [place, amount]);
}

/// Records that the memory limit refused `bytes` bytes.
#[cold]
pub fn refused(bytes: u64) {
    if traced().is_some() {
        let now = clock::monotonic();
        span(Kind::Refused, 0, now, now, bytes);
    }
}

/// Returns the trace while this process is being traced.
fn traced() -> Option<&'static Trace> {
    current().filter(|_| session::ready().is_some_and(|session| session.limits.is_traced()))
}
