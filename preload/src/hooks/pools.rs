//! Memory pools, of the program's making and the driver's own. What counts is what they have reserved from the device, which the driver
//! tells in 20 ns; it grows in steps of 32 MiB and shrinks when the host waits for a stream, so it is looked at then.

use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::ledger::account;
use crate::memory::objects::pool_table::{ELSEWHERE, Pool, add, find, note};
use crate::memory::objects::reservoirs::{settle_all, settle_pool};
use crate::memory::objects::usual_pool::forget_usual;
use crate::memory::objects::{graph_memory, pending_frees, pool_table};
use crate::memory::reconcile::overhead;
use crate::session;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{AllocationProp, Device, Handle, LOCATION_DEVICE, OUT_OF_MEMORY, SUCCESS, Status};

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
            pending_frees::freed_later(gpu, value as u32);
        }
    } else if known.is_some() && find(pool).is_none() {
        add(pool, value).into_iter().for_each(|pool| pool.is_shared.store(shared, Relaxed));
    }
    status
}

/// A device's primary context is gone, and maybe its pools with it: they are met anew when they are used again.
pub fn forget_device(gpu: &Gpu) {
    forget_usual();
    for pool in pool_table::all().filter(|pool| pool.handle_on(gpu).is_some()) {
        let (value, _) = pool.leave();
        account::release(gpu, value as u32);
    }
    overhead::reconcile(gpu);
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
    graph_memory::trimmed();
    settle_all();
    status
}

/// `cuDeviceSetMemPool`
pub unsafe fn set_usual(real: unsafe extern "C" fn(Device, Handle) -> Status, device: Device, pool: Handle) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(device, pool) };
    forget_usual();
    status
}
