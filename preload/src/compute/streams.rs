//! This process's streams, meters and accounts: finds the meter and the account of a stream.
//!
//! Like the session, the state belongs to one process: a forked child has no streams yet and starts with a new state.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

use vgpu_region::MAX_GPUS;
use vgpu_region::limits::LogLevel;

use crate::compute::cuda_engine::Cuda;
use crate::loader::driver;
use crate::memory::objects::context_table::current_handle;
use crate::os::log::Throttle;
use crate::os::{log, mmap};
use crate::session;
use crate::session::{Session, State as Limits};
use crate::trace::control;
use vgpu_cuda_abi::cuda::{Device, Handle, OPERATING_SYSTEM, OUT_OF_MEMORY, PER_THREAD_STREAM, SUCCESS, Status};
use vgpu_gpu_limiter::account::Account;
use vgpu_gpu_limiter::cost_model::CostModel;
use vgpu_gpu_limiter::engine::{Engine, LEGACY_STREAM};
use vgpu_gpu_limiter::meter::Meter;
use vgpu_gpu_limiter::off_times::OffTimes;
use vgpu_gpu_limiter::stream::Stream;
use vgpu_gpu_limiter::turns::Turns;
use vgpu_gpu_limiter::{batch_close, cost_model};

/// Capacity of the stream table.
const STREAMS: usize = 1024;
/// Places of the table in which a stream may be.
const PROBES: usize = 16;
/// Most contexts with a meter.
const METERS: usize = 64;
/// Id of an entry that is being written.
const BEING_WRITTEN: u64 = 1;
/// Id of an entry whose stream is gone.
const GONE: u64 = u64::MAX;

/// An entry of the stream table. Aligned so that it lies in one cache line.
#[repr(align(32))]
struct Entry {
    /// Id of the stream; 0 in a free entry. See also [`BEING_WRITTEN`] and [`GONE`].
    id: AtomicU64,
    /// What the limiter knows of the stream.
    stream: AtomicPtr<Stream>,
    /// Meter of the stream's context.
    meter: AtomicPtr<Meter>,
}

/// The compute limiter's state in this process. All zero is empty.
pub struct State {
    /// Session that the state was made for. A forked child has another.
    session: AtomicPtr<Session>,
    /// Expected costs of launches.
    costs: CostModel,
    /// Hash table of the streams.
    entries: [Entry; STREAMS],
    /// Accounts of the GPUs, by device.
    accounts: [AtomicPtr<Account>; MAX_GPUS],
    /// When this process's channels were off, by device. Not in the accounts, which are made on a program's stack.
    off_times: [OffTimes; MAX_GPUS],
    /// Meters of the contexts.
    meters: [AtomicPtr<Meter>; METERS],
    /// The thread that controls the GPU's scheduler was started.
    has_switcher: AtomicBool,
}

/// The state in use; null before the first launch under a limit.
static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the state, or `None` if no GPU has a compute limit.
///
/// # Errors
/// Status with which launches are refused, because they could not be measured: the limits are not readable, or there is no memory.
#[inline]
pub fn limited() -> Result<Option<&'static State>, Status> {
    match session::cached() {
        // SAFETY: null, or a state, which is never freed.
        Some(state) => Ok(unsafe { state.cast::<State>().as_ref() }),
        None => load(),
    }
}

/// Returns the state for calls that take no GPU time. Returns `None` where [`limited`] fails: such calls need not be refused.
#[inline]
pub fn known() -> Option<&'static State> {
    limited().ok().flatten()
}

/// Reads the limits again, after a change or for the first time.
#[cold]
fn load() -> Result<Option<&'static State>, Status> {
    let session = match session::current() {
        Limits::Ready(session) => session,
        Limits::NotYet => return Ok(None),
        Limits::Refused => return Err(OPERATING_SYSTEM),
    };
    // Read before the limits: the next launch sees a limit that is set in between.
    let generation = session.limits.generation.load(Acquire);
    control::apply(session);
    let is_limited = session.gpus().iter().any(|gpu| gpu.limit.and_then(|limit| limit.cores_limit()).is_some());
    let state = if is_limited { state_of(session)? } else { core::ptr::null_mut() };
    session::cache(session, generation, state.cast());
    // SAFETY: null, or a state, which is never freed.
    Ok(unsafe { state.as_ref() })
}

/// Returns the state of this session, which is created if there is none yet.
fn state_of(session: &'static Session) -> Result<*mut State, Status> {
    let before = STATE.load(Acquire);
    // SAFETY: a state is never freed.
    if unsafe { before.as_ref() }.is_some_and(|state| state.is_of(session)) {
        return Ok(before);
    }
    let state: *mut State = mmap::allocate();
    // SAFETY: new zeroed memory, or null.
    let Some(new) = (unsafe { state.as_ref() }) else { return Err(no_memory()) };
    new.session.store(core::ptr::from_ref(session).cast_mut(), Relaxed);
    // If two threads come first, one wins. The other's memory was never touched and costs nothing.
    Ok(STATE.compare_exchange(before, state, AcqRel, Acquire).map_or_else(|other| other, |_| state))
}

impl State {
    /// Returns true if the state was made for this session.
    pub fn is_of(&self, session: &Session) -> bool {
        core::ptr::eq(self.session.load(Relaxed), session)
    }

    /// Returns the entries in which a stream of this id may be.
    fn places(id: u64) -> impl Iterator<Item = usize> {
        let start = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PROBES).map(move |step| start.wrapping_add(step) % STREAMS)
    }

    /// Records that launches with this key now do other work ([`CostModel::redefine`]).
    pub fn redefine(&self, key: u64, is_collective: bool) {
        self.costs.redefine(key, is_collective);
    }

    /// Returns a stream that was launched into before, and its meter. `handle` is the driver's, legacy and per-thread default streams included.
    #[inline]
    pub fn find(&'static self, handle: Handle) -> Option<(&'static Stream, &'static Meter)> {
        let id = number(handle);
        for place in Self::places(id) {
            let entry = self.entries.get(place)?;
            match entry.id.load(Acquire) {
                found if found == id => {
                    // SAFETY: streams and meters are never freed.
                    return unsafe { Some((entry.stream.load(Acquire).as_ref()?, entry.meter.load(Acquire).as_ref()?)) };
                }
                0 => break,
                _ => {}
            }
        }
        None
    }

    /// Adds a stream that is launched into for the first time. Returns `None` if it is not limited: its GPU has no account, or it has no
    /// context, which the driver will report.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if there is no memory to measure it with, or the driver's status if it does not tell the stream's context.
    #[cold]
    pub fn add(&'static self, handle: Handle) -> Result<Option<(&'static Stream, &'static Meter)>, Status> {
        let Some((context, device)) = context_of(handle)? else { return Ok(None) };
        let Some(meter) = self.meter_of(context, device)? else { return Ok(None) };
        let id = number(handle);
        let found = meter.stream(id, mmap::allocate).or_else(|| meter.overflow_stream(mmap::allocate));
        let Some(stream) = found else { return Err(no_memory()) };
        for place in Self::places(id) {
            let Some(entry) = self.entries.get(place) else { continue };
            for free in [0, GONE] {
                if entry.id.compare_exchange(free, BEING_WRITTEN, AcqRel, Acquire).is_ok() {
                    entry.stream.store(core::ptr::from_ref(stream).cast_mut(), Relaxed);
                    entry.meter.store(core::ptr::from_ref(meter).cast_mut(), Relaxed);
                    entry.id.store(id, Release);
                    return Ok(Some((stream, meter)));
                }
            }
        }
        Ok(Some((stream, meter)))
    }

    /// Returns the meter of a context that was launched into before.
    pub fn known_meter(&'static self, context: Handle) -> Option<&'static Meter> {
        let open = |place: &AtomicPtr<Meter>| {
            // SAFETY: meters are never freed.
            unsafe { place.load(Acquire).as_ref() }.filter(|meter: &&Meter| meter.measures(context))
        };
        self.meters.iter().find_map(open)
    }

    /// Returns the meter of a context, which is made if there is none yet. `None` if its GPU has no account.
    fn meter_of(&'static self, context: Handle, device: Device) -> Result<Option<&'static Meter>, Status> {
        if let Some(meter) = self.known_meter(context) {
            return Ok(Some(meter));
        }
        let Some(account) = self.account(device)? else { return Ok(None) };
        let made: *mut Meter = mmap::allocate();
        if made.is_null() {
            return Err(no_memory());
        }
        // SAFETY: new memory, large and aligned enough.
        unsafe { made.write(Meter::new(context as u64, account)) };
        for place in &self.meters {
            let seen = place.load(Acquire);
            // SAFETY: meters are never freed.
            let is_free = unsafe { seen.as_ref() }.is_none_or(Meter::is_closed);
            if is_free && place.compare_exchange(seen, made, AcqRel, Acquire).is_ok() {
                break;
            }
        }
        // If two threads come first, both add a meter. The first one is used for both: otherwise their overlapping work would count twice.
        // SAFETY: just written. With more contexts than places only its streams lead to the meter.
        Ok(self.known_meter(context).or(unsafe { made.as_ref() }))
    }

    /// Returns the account of a device, which is made if there is none yet. `None` if the device has no limits.
    fn account(&'static self, device: Device) -> Result<Option<&'static Account>, Status> {
        let Some(place) = usize::try_from(device).ok().and_then(|device| self.accounts.get(device)) else { return Ok(None) };
        // SAFETY: accounts are never freed.
        if let Some(account) = unsafe { place.load(Acquire).as_ref() } {
            return Ok(Some(account));
        }
        let Some(session) = session::ready() else { return Ok(None) };
        let Some((gpu, limit)) = session.gpu(device).and_then(|gpu| Some((gpu, gpu.limit?))) else { return Ok(None) };
        let made: *mut Account = mmap::allocate();
        if made.is_null() {
            return Err(no_memory());
        }
        let process = (session.membership.index + 1) as u16;
        let turns = Turns::new(session.limits, gpu.uuid);
        let Some(off_times) = self.off_times.get(device as usize) else { return Ok(None) };
        let account = Account::new(&gpu.account.budget, limit, &self.costs, process, turns, off_times);
        // SAFETY: new memory, large and aligned enough.
        unsafe { made.write(account.with_mps(session.mps_percent)) };
        _ = place.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire);
        // SAFETY: as above.
        Ok(unsafe { place.load(Acquire).as_ref() })
    }

    /// Returns the account of each GPU by ordinal; `None` for one that the process has not launched on.
    pub fn accounts(&'static self) -> impl Iterator<Item = Option<&'static Account>> {
        // SAFETY: accounts are never freed.
        self.accounts.iter().map(|place| unsafe { place.load(Acquire).as_ref() })
    }

    /// Returns the meters of contexts that are not closed.
    pub fn open_meters(&'static self) -> impl Iterator<Item = &'static Meter> {
        // SAFETY: meters are never freed.
        self.meters.iter().filter_map(|place| unsafe { place.load(Acquire).as_ref() }).filter(|meter| !meter.is_closed())
    }

    /// Returns true to the first caller, which starts the thread that controls the GPU's scheduler.
    pub fn needs_switcher(&self) -> bool {
        !self.has_switcher.swap(true, AcqRel)
    }

    /// Called before the program destroys a stream.
    pub fn retire(&'static self, handle: Handle) {
        let id = number(handle);
        let Some((stream, _)) = self.find(handle) else { return };
        self.entries.iter().filter(|entry| entry.id.load(Acquire) == id).for_each(|entry| entry.id.store(GONE, Release));
        if stream.id() != id {
            return;
        }
        // Another thread that has the lock records an event, which takes a microsecond, or the program launches into a stream that it destroys.
        for _ in 0..1000 {
            if let Some(_guard) = stream.lock() {
                stream.retire();
                return;
            }
            Cuda { context: core::ptr::null_mut() }.sleep(100_000);
        }
        stream.retire();
    }

    /// Called before a context is destroyed: charges its finished work, and its unfinished work as expected. Returns the account and the
    /// charge for unfinished work in nanoseconds, if there is any.
    pub fn close(&'static self, context: Handle) -> Option<(&'static Account, u64)> {
        let mut left: Option<(&Account, u64)> = None;
        for place in &self.meters {
            let seen = place.load(Acquire);
            // SAFETY: meters are never freed.
            let Some(meter) = (unsafe { seen.as_ref() }) else { continue };
            if meter.measures(context) {
                let engine = Cuda { context };
                batch_close::finish(&engine, meter);
                let unfinished = meter.close(&engine);
                if unfinished != 0 {
                    left = Some((meter.account, left.map_or(0, |(_, before)| before) + unfinished));
                }
                let is_measured_by_it = |entry: &&Entry| core::ptr::eq(entry.meter.load(Acquire), seen);
                self.entries.iter().filter(is_measured_by_it).for_each(|entry| entry.id.store(GONE, Release));
            }
        }
        left
    }
}

/// Logs that a launch is refused because it could not be measured, and returns the status for it.
pub(super) fn no_memory() -> Status {
    static SAID: Throttle = Throttle::new();
    if SAID.allow() {
        log::line(LogLevel::Error, format_args!("no memory to measure GPU time with: a launch was refused"));
    }
    OUT_OF_MEMORY
}

/// Returns the number of a stream: its handle, which is retired with it. For the legacy default stream it is made of the context. For the
/// thread's own default stream it is the driver's id or, with a driver before 12.0, a hash of handle, context and thread.
#[inline]
fn number(handle: Handle) -> u64 {
    match handle as usize {
        // Odd, unlike any handle, and not one of the table's special ids.
        0 | LEGACY_STREAM => current_handle() as u64 | 1 << 61 | 1,
        _ if handle == PER_THREAD_STREAM => number_of_own(handle),
        _ => handle as u64,
    }
}

/// Returns an id of this thread's own default stream: the driver's where it tells one.
fn number_of_own(handle: Handle) -> u64 {
    let mut id = 0;
    // SAFETY: the program's own stream; the driver writes one number.
    if unsafe { driver::stream_id(handle, &raw mut id) } == SUCCESS {
        return id << 1 | 1 << 62 | 1;
    }
    cost_model::key(&[handle as u64, driver::current_context() as u64, thread_number()]).clamp(2, GONE - 1)
}

/// Returns a number that no other thread of the process has.
fn thread_number() -> u64 {
    // SAFETY: the call has no arguments; the address is unique to the thread.
    unsafe { libc::__errno_location() as u64 }
}

/// Returns a stream's context and its device, or `None` if there is no context.
fn context_of(stream: Handle) -> Result<Option<(Handle, Device)>, Status> {
    let (context, mut device) = (driver::context_of(stream), 0);
    if context.is_null() {
        return Ok(None);
    }
    // SAFETY: the context of a stream that the program uses, or the current one; the driver writes one integer.
    match unsafe { driver::in_context(context, || driver::current_device(&raw mut device)) }? {
        SUCCESS => Ok(Some((context, device))),
        status => Err(status),
    }
}
