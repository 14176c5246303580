//! Memory pools, of the program's making and the driver's own. What counts is what they have reserved from the device, which the driver
//! tells in 20 ns; it grows in steps of 32 MiB and shrinks when the host waits for a stream, so it is looked at then.

use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use vgpu_region::ledger::pages;

use super::account::{self, Claim};
use super::{capture, graph, ordered};
use crate::cuda::{AllocationProp, Device, Handle, LOCATION_DEVICE, OUT_OF_MEMORY, POOL_RESERVED_CURRENT, SUCCESS, Status};
use crate::driver;
use crate::session::{self, Gpu};

/// A pool that this process has met.
struct Pool {
    handle: AtomicPtr<core::ffi::c_void>,
    /// The device in the upper half, the reserved pages that were charged in the lower; or [`ELSEWHERE`].
    record: AtomicU64,
}

/// Few, and looked at after every wait, so they stand in a row. A place is taken by compare-and-swap and free again when its handle is
/// null.
static POOLS: [Pool; 512] = [const { Pool { handle: AtomicPtr::new(core::ptr::null_mut()), record: AtomicU64::new(0) } }; 512];
/// One above the highest place ever taken.
static POOLS_USED: AtomicUsize = AtomicUsize::new(0);
/// The record of a pool whose memory is not a device's.
pub const ELSEWHERE: u64 = u64::MAX;

fn pools() -> impl Iterator<Item = &'static Pool> {
    POOLS.iter().take(POOLS_USED.load(Acquire))
}

fn find(handle: Handle) -> Option<&'static Pool> {
    pools().find(|pool| pool.handle.load(Acquire) == handle)
}

/// Notes a pool. `None` if there are more than can be kept.
fn add(handle: Handle, record: u64) -> Option<&'static Pool> {
    const WRITING: Handle = 1 as Handle;
    let free = |pool: &Pool| pool.handle.compare_exchange(core::ptr::null_mut(), WRITING, AcqRel, Relaxed).is_ok();
    let place = POOLS.iter().position(free)?;
    let pool = POOLS.get(place)?;
    pool.record.store(record, Relaxed);
    pool.handle.store(handle, Release);
    POOLS_USED.fetch_max(place + 1, AcqRel);
    Some(pool)
}

/// Notes a pool that the driver has of its own, and the device of its memory; `None` is elsewhere. `false` if it cannot be kept.
pub fn note(handle: Handle, device: Option<Device>) -> bool {
    find(handle).or_else(|| add(handle, device.map_or(ELSEWHERE, |device| (device as u64) << 32))).is_some()
}

/// The pool that `cuMemAllocAsync` takes from on each device, with its record, until a program sets another.
pub struct Usual {
    pub pool: Handle,
    pub record: &'static AtomicU64,
}

static USUAL: [AtomicPtr<Usual>; vgpu_region::MAX_GPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; vgpu_region::MAX_GPUS];

/// The usual pool of a GPU. `None` if the driver has none.
#[inline]
pub fn usual(gpu: &Gpu) -> Option<&'static Usual> {
    // SAFETY: null or what `look_up_usual` made, which is never freed.
    unsafe { USUAL.get(gpu.device as usize)?.load(Acquire).as_ref() }.or_else(|| look_up_usual(gpu))
}

#[cold]
fn look_up_usual(gpu: &Gpu) -> Option<&'static Usual> {
    let mut pool = core::ptr::null_mut();
    // SAFETY: the driver writes one handle.
    if unsafe { driver::device_pool(&raw mut pool, gpu.device) } != SUCCESS {
        return None;
    }
    let record = record_of(pool, gpu)?;
    let fresh: *mut Usual = session::allocate();
    if fresh.is_null() {
        return None;
    }
    // SAFETY: freshly mapped, and never freed.
    unsafe {
        fresh.write(Usual { pool, record });
        USUAL.get(gpu.device as usize)?.store(fresh, Release);
        Some(&*fresh)
    }
}

/// The usual pools have to be asked for again.
pub fn forget_usual() {
    USUAL.iter().for_each(|usual| usual.store(core::ptr::null_mut(), Release));
}

/// `cuDeviceSetMemPool`
pub unsafe fn set_usual(real: unsafe extern "C" fn(Device, Handle) -> Status, device: Device, pool: Handle) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(device, pool) };
    forget_usual();
    status
}

pub fn attribute(pool: Handle, attribute: i32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the driver writes one word, or fails for a handle that is no pool.
    (unsafe { driver::pool_attribute(pool, attribute, &raw mut value) } == SUCCESS).then_some(value)
}

/// The record of a pool; pools that no call of ours made are a device's own, met for the first time.
pub fn record_of(pool: Handle, gpu: &Gpu) -> Option<&'static AtomicU64> {
    find(pool).or_else(|| add(pool, (gpu.device as u64) << 32)).map(|pool| &pool.record)
}

/// Brings what is charged for a reservoir (a pool, or a device's graph memory) in line with what it has reserved, as `read` tells.
/// `claim` was taken for its growth.
pub fn settle(gpu: &Gpu, record: &AtomicU64, claim: Option<Claim<'_>>, read: impl Fn() -> Option<u64>) {
    let _relaxed = capture::leave_alone();
    loop {
        let seen = record.load(Acquire);
        let Some(reserved) = read().map(pages) else { break };
        let charged = seen as u32;
        if reserved == charged && record.load(Acquire) == seen {
            break;
        }
        // Two threads that settle at once read different figures; only one that saw the record unchanged may write.
        if record.compare_exchange(seen, (seen >> 32) << 32 | u64::from(reserved), AcqRel, Acquire).is_err() {
            continue;
        }
        match claim {
            Some(claim) => claim.settle(reserved.saturating_sub(charged)),
            None => account::charge(gpu, reserved.saturating_sub(charged)),
        }
        account::release(gpu, charged.saturating_sub(reserved));
        return;
    }
    if let Some(claim) = claim {
        claim.drop_all();
    }
}

pub fn settle_pool(gpu: &Gpu, pool: Handle, record: &AtomicU64, claim: Option<Claim<'_>>) {
    settle(gpu, record, claim, || attribute(pool, POOL_RESERVED_CURRENT));
}

/// Looks at every pool of a GPU.
pub fn settle_all_of(gpu: &Gpu) {
    for Pool { handle, record } in pools() {
        let value = record.load(Relaxed);
        let handle = handle.load(Acquire);
        if handle as usize > 1 && value != ELSEWHERE && (value >> 32) as Device == gpu.device {
            settle_pool(gpu, handle, record, None);
        }
    }
    graph::settle(gpu);
}

/// Looks at every pool: a host's wait has let them shrink.
#[inline]
pub fn settle_after_wait() {
    if POOLS_USED.load(Relaxed) != 0 {
        settle_all();
    }
}

fn settle_all() {
    if let Some(session) = session::ready() {
        session.gpus().iter().for_each(settle_all_of);
    }
}

/// `cuMemPoolCreate`
pub unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, *const AllocationProp) -> Status,
    pool: *mut Handle,
    properties: *const AllocationProp,
) -> Status {
    // SAFETY: the program's own arguments; both are read only after the driver has accepted them.
    unsafe {
        let status = real(pool, properties);
        if status == SUCCESS {
            let location = (*properties).location;
            let device = if location.kind == LOCATION_DEVICE { (location.id as u64) << 32 } else { ELSEWHERE };
            if add(*pool, device).is_none() {
                // What cannot be watched cannot be had.
                driver::pool_destroy(*pool);
                return OUT_OF_MEMORY;
            }
        }
        status
    }
}

/// `cuMemPoolDestroy`: allocations that are still live keep their memory, which only NVML can tell about from now on.
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, pool: Handle) -> Status {
    let known = find(pool).filter(|_| !pool.is_null());
    let gpu = known.and_then(|known| {
        let value = known.record.load(Relaxed);
        if value == ELSEWHERE { None } else { session::ready()?.gpu((value >> 32) as Device) }
    });
    if let (Some(known), Some(gpu)) = (known, gpu) {
        settle_pool(gpu, pool, &known.record, None);
    }
    forget_usual();
    // From here on another thread may be given the same handle.
    if let Some(known) = known {
        known.handle.store(core::ptr::null_mut(), Release);
    }
    let value = known.map_or(0, |known| known.record.load(Relaxed));
    // SAFETY: the program's own argument.
    let status = unsafe { real(pool) };
    if known.is_some() && status != SUCCESS {
        _ = add(pool, value);
    } else if let Some(gpu) = gpu {
        ordered::freed_later(gpu, value as u32);
    }
    status
}

/// `cuMemPoolTrimTo`
pub unsafe fn trim(real: unsafe extern "C" fn(Handle, usize) -> Status, pool: Handle, keep: usize) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(pool, keep) };
    settle_all();
    status
}

/// `cuDeviceGraphMemTrim`
pub unsafe fn trim_graphs(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { real(device) };
    graph::trimmed();
    settle_all();
    status
}
