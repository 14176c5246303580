//! Memory pools, of the program's making and the driver's own. What counts is what they have reserved from the device, which the driver
//! tells in 20 ns; it grows in steps of 32 MiB and shrinks when the host waits for a stream, so it is looked at then.

mod met;
mod usual;

use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

use vgpu_region::ledger::pages;

use super::account::{self, Claim};
use super::{capture, graph, ordered, truth};
use crate::cuda::{
    AllocationProp, Device, Handle, LOCATION_DEVICE, OUT_OF_MEMORY, POOL_RESERVED_CURRENT, POOL_USED_CURRENT, SUCCESS, Status,
};
use crate::driver;
use crate::session::{self, Gpu};
pub use met::Pool;
use met::{ELSEWHERE, add, find, for_each_of};
pub use usual::{forget_usual, set_usual, usual};

/// Notes a pool that the driver has of its own, and the device of its memory; `None` is elsewhere. `false` if it cannot be kept.
pub fn note(handle: Handle, device: Option<Device>) -> bool {
    find(handle).or_else(|| add(handle, device.map_or(ELSEWHERE, |device| (device as u64) << 32))).is_some()
}

/// Whether others than its own GPU and process can get at a pool's memory, so that no other memory can stand in for it.
pub fn is_shared(handle: Handle) -> bool {
    find(handle).is_none_or(|pool| pool.is_shared.load(Relaxed))
}

/// Whether a pool probably has room for `bytes` between its allocations. Only it knows whether that is in one piece, and if it is not, it
/// grows by a step, which is undone: so there has to be twice as much, unless it is known to be behind them all, and once it had none, it
/// is not tried again until something was freed.
pub fn has_room(pool: Handle, known: &Pool, bytes: u64) -> bool {
    if known.has_tail(bytes) {
        return true;
    }
    let (Some(reserved), Some(used)) = (attribute(pool, POOL_RESERVED_CURRENT), attribute(pool, POOL_USED_CURRENT)) else { return false };
    let full_at = known.full_at.load(Relaxed);
    reserved.saturating_sub(used) >= bytes.saturating_mul(2) && (full_at == 0 || used < full_at)
}

/// It had no room in one piece.
pub fn has_none(pool: Handle, known: &Pool) {
    known.tail.store(0, Relaxed);
    if let Some(used) = attribute(pool, POOL_USED_CURRENT) {
        known.full_at.store(used.max(1), Relaxed);
    }
}

/// `cuMemPoolSetAccess`
pub unsafe fn set_access(
    real: unsafe extern "C" fn(Handle, *const core::ffi::c_void, usize) -> Status,
    pool: Handle,
    list: *const core::ffi::c_void,
    count: usize,
) -> Status {
    if let Some(known) = find(pool).filter(|_| !pool.is_null()) {
        known.is_shared.store(true, Relaxed);
    }
    // SAFETY: the program's own arguments.
    unsafe { real(pool, list, count) }
}

/// `cuDeviceGetMemPool` and `cuDeviceGetDefaultMemPool`
pub unsafe fn get(real: unsafe extern "C" fn(*mut Handle, Device) -> Status, pool: *mut Handle, device: Device) -> Status {
    // SAFETY: the program's own arguments; the handle is read only after the driver wrote it.
    unsafe {
        let status = real(pool, device);
        // What cannot be watched cannot be had.
        if status == SUCCESS && !note(*pool, Some(device)) {
            *pool = core::ptr::null_mut();
            return OUT_OF_MEMORY;
        }
        status
    }
}

pub fn attribute(pool: Handle, attribute: i32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the driver writes one word, or fails for a handle that is no pool.
    (unsafe { driver::pool_attribute(pool, attribute, &raw mut value) } == SUCCESS).then_some(value)
}

/// What is known of a pool. One that no call of ours gave is a device's own, or imported: of that nothing can be allocated.
pub fn known_of(pool: Handle) -> Option<&'static Pool> {
    let own = |gpu: &&Gpu| {
        let (mut usual, mut first) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the driver writes one handle each.
        unsafe {
            driver::device_pool(&raw mut usual, gpu.device);
            driver::device_default_pool(&raw mut first, gpu.device);
        }
        pool == usual || pool == first
    };
    let met = || session::ready()?.gpus().iter().find(own).and_then(|gpu| add(pool, (gpu.device as u64) << 32));
    find(pool).or_else(met)
}

/// Brings what is charged for a reservoir (a pool, or a device's graph memory) in line with what it has reserved, as `read` tells.
/// `claim` was taken for its growth.
pub fn settle(gpu: &Gpu, record: &AtomicU64, mut claim: Option<Claim<'_>>, read: impl Fn() -> Option<u64>) {
    let _relaxed = capture::leave_alone();
    loop {
        let seen = record.load(Acquire);
        let Some(reserved) = read().map(pages) else { break };
        let charged = seen as u32;
        if reserved == charged && record.load(Acquire) == seen {
            break;
        }
        let settled = account::together(|| {
            // Two threads that settle at once read different figures; only one that saw the record unchanged may write.
            let next = (seen >> 32) << 32 | u64::from(reserved);
            record.compare_exchange(seen, next, AcqRel, Acquire).is_ok() && {
                match claim.take() {
                    Some(claim) => claim.settle(reserved.saturating_sub(charged)),
                    None => account::charge(gpu, reserved.saturating_sub(charged)),
                }
                account::release(gpu, charged.saturating_sub(reserved));
                true
            }
        });
        if settled {
            return;
        }
    }
    if let Some(claim) = claim {
        claim.drop_all();
    }
}

pub fn settle_pool(gpu: &Gpu, pool: Handle, known: &Pool, claim: Option<Claim<'_>>) {
    let before = known.charged();
    settle(gpu, &known.record, claim, || attribute(pool, POOL_RESERVED_CURRENT));
    if known.charged() < before {
        // What is behind the last allocation may be gone.
        known.tail.store(0, Relaxed);
    }
}

/// Looks at every pool of a GPU.
pub fn settle_all_of(gpu: &Gpu) {
    for_each_of(gpu, |pool, known| settle_pool(gpu, pool, known, None));
    graph::settle(gpu);
}

/// Gives back to the device what this process's pools and graphs hold and do not use, as another allocation needs it.
pub fn trim_idle(gpu: &Gpu) {
    if capture::may_go_on() {
        return;
    }
    // SAFETY: a pool of the program's, which lives.
    for_each_of(gpu, |pool, _| unsafe { _ = driver::pool_trim(pool, 0) });
    graph::trim_idle(gpu);
    settle_all_of(gpu);
}

/// Looks at every pool: a host's wait has let them shrink.
#[inline]
pub fn settle_after_wait() {
    if met::any() {
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
            let Some(known) = add(*pool, device) else {
                // What cannot be watched cannot be had.
                driver::pool_destroy(*pool);
                return OUT_OF_MEMORY;
            };
            known.is_shared.store((*properties).handle_types != 0, Relaxed);
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
        settle_pool(gpu, pool, known, None);
    }
    forget_usual();
    // From here on another thread may be given the same handle.
    let (value, shared) = known.map_or((0, false), Pool::leave);
    // SAFETY: the program's own argument.
    let status = unsafe { real(pool) };
    // Meanwhile another thread may have met it as the usual one, which it was until it was gone.
    forget_usual();
    if status == SUCCESS {
        find(pool).map(Pool::leave);
        if let Some(gpu) = gpu {
            ordered::freed_later(gpu, value as u32);
        }
    } else if known.is_some() && find(pool).is_none() {
        add(pool, value).into_iter().for_each(|pool| pool.is_shared.store(shared, Relaxed));
    }
    status
}

/// A device's primary context is gone, and maybe its pools with it: they are met anew when they are used again.
pub fn forget_device(gpu: &Gpu) {
    forget_usual();
    for pool in met::all().filter(|pool| pool.handle_on(gpu).is_some()) {
        let (value, _) = pool.leave();
        account::release(gpu, value as u32);
    }
    truth::reconcile(gpu);
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
