//! Traces: what the program does on the GPU, recorded into this process's ring in the region ([`vgpu_region::trace`]).
//!
//! While nobody traces, nothing here is on the path of a call. Launches, copies and waits compare the limits page's generation with the
//! one that they know, one load of a line that is hardly ever written, to see a change of limits ([`crate::compute`]); a trace that
//! begins changes it, too. Then [`look`] puts our own functions between the hooks and the driver: what the hooks call as the driver's
//! function is one that records the call and makes it ([`crate::table`] says which, [`call`] what of it), until the trace ends. Waits
//! and refusals, which are slow anyway, are recorded where they happen.
//!
//! * [`lane`]: when work ran on the GPU, from a pair of events around it. [`names`]: kernels' names, kernels in graphs.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32};

use vgpu_region::limits::LogLevel;
use vgpu_region::map;
use vgpu_region::trace::{CAPTURED, FAILED, Kind, Ring, TIMED, What};

use crate::entry_points;
use crate::entry_points::names::COUNT;
use crate::os::{clock, log, mmap};
use crate::session;
use crate::session::Session;
use crate::trace::call::Call;
use crate::trace::gpu_time::{Lanes, Timer};
use crate::trace::{gpu_time, names};
use vgpu_cuda_abi::cuda::{SUCCESS, Status};

/// This process's part in a trace. Like the session, it belongs to one process. All zero is a valid one.
pub struct Trace {
    session: AtomicPtr<Session>,
    ring: AtomicPtr<Ring>,
    pid: AtomicU32,
    /// What [`Ring::call`] gave for each entry of the table.
    calls: [AtomicU8; COUNT],
    lanes: Lanes,
    names: names::Names,
}

static TRACE: AtomicPtr<Trace> = AtomicPtr::new(core::ptr::null_mut());

impl Trace {
    pub fn ring(&self) -> Option<&'static Ring> {
        // SAFETY: a ring is never unmapped.
        unsafe { self.ring.load(Acquire).as_ref() }
    }
}

/// This process's trace, if it has ever been traced.
pub fn current() -> Option<&'static Trace> {
    // SAFETY: a trace is never given back.
    let trace = unsafe { TRACE.load(Acquire).as_ref() }?;
    // A forked child finds its parent's here, until it has a session of its own.
    core::ptr::eq(trace.session.load(Relaxed), session::ready()?).then_some(trace)
}

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
    // Of two threads that come first one wins; both have the same ring, and the other's memory was never used.
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

/// Writes a record. Gives its number. `values` are its place and its amount.
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
    record.sequence.store(number + 1, Release);
    Some(number)
}

/// A call that is being made.
pub struct Pending {
    trace: Option<&'static Trace>,
    entry: usize,
    call: Call,
    name: u16,
    began: u64,
    timer: Option<Timer>,
    captured: bool,
}

/// Before the driver's function: `entry` is its place in the table.
pub fn begin(entry: usize, call: Call) -> Pending {
    let trace = current();
    let mut pending = Pending { trace, entry, call, name: 0, began: 0, timer: None, captured: false };
    if let Some(trace) = trace {
        match call.kind {
            Kind::Kernel => pending.name = trace.ring().map_or(0, |ring| trace.names.of(ring, call.place)),
            _ => pending.name = call.name,
        }
        if call.ends_contexts {
            trace.lanes.close(trace.ring());
        }
        if call.is_work {
            pending.captured = gpu_time::is_captured(call.stream);
            if !pending.captured {
                pending.timer = trace.lanes.start(trace.ring(), call.stream);
            }
        }
        pending.began = clock::monotonic();
    }
    pending
}

/// After it, with what it answered.
pub fn end(pending: Pending, status: Status) {
    let Some(trace) = pending.trace else { return };
    let (Some(ring), Some(known)) = (trace.ring(), trace.calls.get(pending.entry)) else { return };
    let took = clock::monotonic().saturating_sub(pending.began);
    let mut call = known.load(Relaxed);
    if call == 0 {
        call = ring.call(entry_points::names::name_of(pending.entry).to_bytes());
        known.store(call, Relaxed);
    }
    count(ring, call, took);
    if pending.call.forgets_names && status == SUCCESS {
        trace.names.forget();
    }
    if pending.call.kind == Kind::Other {
        return;
    }
    let timer = match pending.timer {
        Some(timer) if status == SUCCESS => timer.stop(pending.call.stream),
        Some(timer) => {
            timer.drop_it();
            None
        }
        None => None,
    };
    let mut flags = if timer.is_some() { TIMED } else { 0 };
    flags |= if pending.captured { CAPTURED } else { 0 } | if status == SUCCESS { 0 } else { FAILED };
    let context = timer.as_ref().map_or(0, Timer::context);
    let what = What { kind: pending.call.kind as u8, flags, context, call, name: pending.name };
    let number = push(trace, what, (pending.began, took), pending.call.values(status));
    if let Some(timer) = timer {
        match number {
            Some(number) => timer.belongs_to(number),
            None => timer.drop_it(),
        }
    }
    trace.lanes.harvest(ring, pending.call.kind == Kind::Synchronize);
}

/// Counts a call of the function in this place of the ring. Gives the place.
fn count(ring: &Ring, call: u8, took: u64) -> u8 {
    if let Some(counter) = usize::from(call).checked_sub(1).and_then(|place| ring.calls.get(place)) {
        counter.count.fetch_add(1, Relaxed);
        counter.took.fetch_add(took, Relaxed);
    }
    call
}

/// Something that took from `began` to `ended`, in nanoseconds of `CLOCK_MONOTONIC`, and is no call of the driver's.
#[cold]
pub fn span(kind: Kind, stream: u64, began: u64, ended: u64, amount: u64) {
    let Some(trace) = traced() else { return };
    let took = ended.saturating_sub(began);
    let mut what = What { kind: kind as u8, ..What::default() };
    if kind == Kind::Init {
        // It was called before anything could be recorded of it.
        what.call = trace.ring().map_or(0, |ring| count(ring, ring.call(b"cuInit"), took));
    }
    push(trace, what, (began, took), [stream, amount]);
}

/// The limit refused so many bytes.
#[cold]
pub fn refused(bytes: u64) {
    if traced().is_some() {
        let now = clock::monotonic();
        span(Kind::Refused, 0, now, now, bytes);
    }
}

fn traced() -> Option<&'static Trace> {
    current().filter(|_| session::ready().is_some_and(|session| session.limits.is_traced()))
}
