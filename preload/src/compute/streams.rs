//! This process's meters and accounts: from a stream to what pays for it.
//!
//! Like the session, the state belongs to one process: a forked child, which has no streams of its own yet, starts anew.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};

use vgpu_region::MAX_GPUS;
use vgpu_region::limits::LogLevel;

use crate::compute::cuda_engine::Cuda;
use crate::loader::driver;
use crate::memory::objects::context_table::current_handle;
use crate::os::log::Seldom;
use crate::os::{log, mmap};
use crate::session;
use crate::session::{Session, State as Limits};
use crate::trace::control;
use vgpu_cuda_abi::cuda::{Device, Handle, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, Status};
use vgpu_gpu_limiter::account::Account;
use vgpu_gpu_limiter::cost_model::Costs;
use vgpu_gpu_limiter::engine::{Engine, LEGACY};
use vgpu_gpu_limiter::meter::Meter;
use vgpu_gpu_limiter::stream::Stream;
use vgpu_gpu_limiter::turns::Gate;
use vgpu_gpu_limiter::{batch_close, cost_model};

const STREAMS: usize = 1024;
const PROBES: usize = 16;
const METERS: usize = 64;
const PER_THREAD: usize = 2;
/// The mark of a place whose stream is gone.
const GONE: u64 = u64::MAX;

/// In one cache line.
#[repr(align(32))]
struct Entry {
    id: AtomicU64,
    stream: AtomicPtr<Stream>,
    meter: AtomicPtr<Meter>,
}

/// The tables. All zero is empty.
pub struct State {
    session: AtomicPtr<Session>,
    costs: Costs,
    entries: [Entry; STREAMS],
    accounts: [AtomicPtr<Account>; MAX_GPUS],
    meters: [AtomicPtr<Meter>; METERS],
}

static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());

/// The state, if any GPU has a compute limit.
///
/// # Errors
/// What a launch is refused with, as nobody could tell what it took: the limits cannot be known, or there is no memory.
#[inline]
pub fn limited() -> Result<Option<&'static State>, Status> {
    match session::kept() {
        // SAFETY: null, or a state, which is never given back.
        Some(state) => Ok(unsafe { state.cast::<State>().as_ref() }),
        None => look(),
    }
}

/// The same for what takes no time of the GPU: it is done as ever where nothing can be measured.
#[inline]
pub fn known() -> Option<&'static State> {
    limited().ok().flatten()
}

#[cold]
fn look() -> Result<Option<&'static State>, Status> {
    let session = match session::current() {
        Limits::Ready(session) => session,
        Limits::NotYet => return Ok(None),
        Limits::Refused => return Err(OPERATING_SYSTEM),
    };
    // Read first: a limit that is set in between is seen by the next launch.
    let generation = session.limits.generation.load(Acquire);
    control::look(session);
    let is_limited = session.gpus().iter().any(|gpu| gpu.limit.and_then(|limit| limit.cores_limit()).is_some());
    let state = if is_limited { start(session)? } else { core::ptr::null_mut() };
    session::keep(session, generation, state.cast());
    // SAFETY: null, or a state, which is never given back.
    Ok(unsafe { state.as_ref() })
}

/// The state of this session, made if there is none yet.
fn start(session: &'static Session) -> Result<*mut State, Status> {
    let before = STATE.load(Acquire);
    // SAFETY: a state is never given back.
    if unsafe { before.as_ref() }.is_some_and(|state| state.is_of(session)) {
        return Ok(before);
    }
    let state: *mut State = mmap::allocate();
    // SAFETY: fresh zeroed memory, or null.
    let Some(fresh) = (unsafe { state.as_ref() }) else { return Err(no_memory()) };
    fresh.session.store(core::ptr::from_ref(session).cast_mut(), Relaxed);
    // Of two threads that come first one wins; the other's memory was never used and costs nothing.
    Ok(STATE.compare_exchange(before, state, AcqRel, Acquire).map_or_else(|other| other, |_| state))
}

impl State {
    fn is_of(&self, session: &Session) -> bool {
        core::ptr::eq(self.session.load(Relaxed), session)
    }

    fn places(id: u64) -> impl Iterator<Item = usize> {
        let start = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PROBES).map(move |step| start.wrapping_add(step) % STREAMS)
    }

    /// See [`Costs::renew`].
    pub fn renew(&self, key: u64, is_collective: bool) {
        self.costs.renew(key, is_collective);
    }

    /// What is known of a stream. `handle` is the driver's, legacy and per-thread default streams included.
    #[inline]
    pub fn find(&'static self, handle: Handle) -> Option<(&'static Stream, &'static Meter)> {
        let id = number(handle);
        for place in Self::places(id) {
            let entry = self.entries.get(place)?;
            match entry.id.load(Acquire) {
                found if found == id => {
                    // SAFETY: streams and meters are never given back.
                    return unsafe { Some((entry.stream.load(Acquire).as_ref()?, entry.meter.load(Acquire).as_ref()?)) };
                }
                0 => break,
                _ => {}
            }
        }
        None
    }

    /// Enters a stream that is launched into for the first time. `None` if nothing limits it: its GPU has no account, or there is no
    /// context for it, as the driver will say.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if there is no memory to measure it with; what the driver says if it does not tell whose it is.
    #[cold]
    pub fn meet(&'static self, handle: Handle) -> Result<Option<(&'static Stream, &'static Meter)>, Status> {
        let Some((context, device)) = context_of(handle)? else { return Ok(None) };
        let Some(meter) = self.meter_of(context, device)? else { return Ok(None) };
        let id = number(handle);
        let Some(stream) = meter.adopt(id, mmap::allocate).or_else(|| meter.crowd(mmap::allocate)) else { return Err(no_memory()) };
        for place in Self::places(id) {
            let Some(entry) = self.entries.get(place) else { continue };
            for free in [0, GONE] {
                if entry.id.compare_exchange(free, 1, AcqRel, Acquire).is_ok() {
                    entry.stream.store(core::ptr::from_ref(stream).cast_mut(), Relaxed);
                    entry.meter.store(core::ptr::from_ref(meter).cast_mut(), Relaxed);
                    entry.id.store(id, Release);
                    return Ok(Some((stream, meter)));
                }
            }
        }
        Ok(Some((stream, meter)))
    }

    /// The meter of a context that was launched into.
    pub fn known_meter(&'static self, context: Handle) -> Option<&'static Meter> {
        let live = |place: &AtomicPtr<Meter>| {
            // SAFETY: meters are never given back.
            unsafe { place.load(Acquire).as_ref() }
                .filter(|meter: &&Meter| meter.context.load(Acquire) == context as u64 && !meter.gone.load(Acquire))
        };
        self.meters.iter().find_map(live)
    }

    fn meter_of(&'static self, context: Handle, device: Device) -> Result<Option<&'static Meter>, Status> {
        if let Some(meter) = self.known_meter(context) {
            return Ok(Some(meter));
        }
        let Some(account) = self.account(device)? else { return Ok(None) };
        let made: *mut Meter = mmap::allocate();
        if made.is_null() {
            return Err(no_memory());
        }
        // SAFETY: fresh memory, large and aligned enough.
        unsafe { made.write(Meter::new(context as u64, account)) };
        for place in &self.meters {
            let seen = place.load(Acquire);
            // SAFETY: as above.
            let is_free = unsafe { seen.as_ref() }.is_none_or(|meter| meter.gone.load(Acquire));
            if is_free && place.compare_exchange(seen, made, AcqRel, Acquire).is_ok() {
                break;
            }
        }
        // Of two threads that come first both enter one; the first of them is used, or their work would not be seen to overlap.
        // SAFETY: just written; with more contexts than places it is found by its streams only.
        Ok(self.known_meter(context).or(unsafe { made.as_ref() }))
    }

    fn account(&'static self, device: Device) -> Result<Option<&'static Account>, Status> {
        let Some(place) = usize::try_from(device).ok().and_then(|device| self.accounts.get(device)) else { return Ok(None) };
        // SAFETY: accounts are never given back.
        if let Some(account) = unsafe { place.load(Acquire).as_ref() } {
            return Ok(Some(account));
        }
        let Some(session) = session::ready() else { return Ok(None) };
        let Some((gpu, limit)) = session.gpu(device).and_then(|gpu| Some((gpu, gpu.limit?))) else { return Ok(None) };
        let made: *mut Account = mmap::allocate();
        if made.is_null() {
            return Err(no_memory());
        }
        let who = (session.membership.index + 1) as u16;
        let gate = Gate::new(session.limits, gpu.uuid);
        // SAFETY: fresh memory, large and aligned enough.
        unsafe { made.write(Account::new(&gpu.account.budget, limit, &self.costs, who, gate).with_mps(session.mps_percent)) };
        _ = place.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire);
        // SAFETY: as above.
        Ok(unsafe { place.load(Acquire).as_ref() })
    }

    /// A stream is about to be destroyed.
    pub fn retire(&'static self, handle: Handle) {
        let id = number(handle);
        let Some((stream, _)) = self.find(handle) else { return };
        self.entries.iter().filter(|entry| entry.id.load(Acquire) == id).for_each(|entry| entry.id.store(GONE, Release));
        if stream.id.load(Acquire) != id {
            return;
        }
        // Whoever has the claim is recording an event, which takes a microsecond, or the program launches into what it destroys.
        for _ in 0..1000 {
            if let Some(_claim) = stream.claim() {
                stream.retired.store(true, Release);
                return;
            }
            Cuda { context: core::ptr::null_mut() }.sleep(100_000);
        }
        stream.retired.store(true, Release);
    }

    /// A context is about to be destroyed: what has finished in it is charged. Gives who pays for what has not, and what that was
    /// expected to take, in nanoseconds: so much has been charged for it.
    pub fn close(&'static self, context: Handle) -> Option<(&'static Account, u64)> {
        let mut left: Option<(&Account, u64)> = None;
        for place in &self.meters {
            let seen = place.load(Acquire);
            // SAFETY: meters are never given back.
            let Some(meter) = (unsafe { seen.as_ref() }) else { continue };
            if meter.context.load(Acquire) == context as u64 && !meter.gone.load(Acquire) {
                let engine = Cuda { context };
                batch_close::finish(&engine, meter);
                let unfinished = meter.close(&engine);
                if unfinished != 0 {
                    left = Some((meter.account, left.map_or(0, |(_, before)| before) + unfinished));
                }
                let of_this = |entry: &&Entry| core::ptr::eq(entry.meter.load(Acquire), seen);
                self.entries.iter().filter(of_this).for_each(|entry| entry.id.store(GONE, Release));
            }
        }
        left
    }
}

/// What cannot be measured is not launched.
pub(super) fn no_memory() -> Status {
    static SAID: Seldom = Seldom::new();
    if SAID.now() {
        log::line(LogLevel::Error, format_args!("no memory to measure GPU time with: a launch was refused"));
    }
    OUT_OF_MEMORY
}

/// A number for a stream: its handle, which is retired with it; for the legacy default stream one made of its context, and for the thread's own
/// the driver's number of it or, with a driver before 12.0, one made of what tells it apart.
#[inline]
fn number(handle: Handle) -> u64 {
    match handle as usize {
        // Odd, unlike any handle, and none of the table's marks.
        0 | LEGACY => current_handle() as u64 | 1 << 61 | 1,
        PER_THREAD => number_of_own(handle),
        _ => handle as u64,
    }
}

fn number_of_own(handle: Handle) -> u64 {
    let mut id = 0;
    // SAFETY: the program's own stream; the driver writes one number.
    if unsafe { driver::stream_id(handle, &raw mut id) } == SUCCESS {
        return id << 1 | 1 << 62 | 1;
    }
    cost_model::key(&[handle as u64, driver::current_context() as u64, thread_number()]).clamp(2, GONE - 1)
}

fn thread_number() -> u64 {
    // SAFETY: the call takes nothing; the address is this thread's alone.
    unsafe { libc::__errno_location() as u64 }
}

/// A stream's context and its device; `None` if there is none.
fn context_of(stream: Handle) -> Result<Option<(Handle, Device)>, Status> {
    let (mut context, mut popped, mut device) = (core::ptr::null_mut(), core::ptr::null_mut(), 0);
    // SAFETY: the program's own stream; the driver writes into variables of the documented types; what is pushed is popped.
    let status = unsafe {
        // The default streams are the current context's.
        if stream as usize <= 2 || driver::stream_context(stream, &raw mut context) != SUCCESS {
            context = driver::current_context();
        }
        if context.is_null() {
            return Ok(None);
        }
        if context == driver::current_context() {
            driver::current_device(&raw mut device)
        } else {
            match driver::context_push(context) {
                SUCCESS => {
                    let status = driver::current_device(&raw mut device);
                    driver::context_pop(&raw mut popped);
                    status
                }
                refused => refused,
            }
        }
    };
    if status == SUCCESS { Ok(Some((context, device))) } else { Err(status) }
}
