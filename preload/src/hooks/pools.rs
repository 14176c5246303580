//! Memory pools, the program's and the driver's own. A pool is charged what it has reserved from the device, which the driver tells in 20
//! ns. It grows in steps of 32 MiB and shrinks when the host waits for a stream, so it is settled then.

use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::ledger::account;
use crate::memory::objects::pool_table::{ELSEWHERE, Pool, add, find, record_own};
use crate::memory::objects::reservoirs::{settle_all, settle_pool};
use crate::memory::objects::usual_pool::forget_usual;
use crate::memory::objects::{graph_memory, pending_frees, pool_table};
use crate::memory::reconcile::overhead;
use crate::os::log::{self, Throttle};
use crate::session::{self, Gpu};
use vgpu_cuda_abi::cuda::{AllocationProp, Device, Handle, LOCATION_DEVICE, Location, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, Status};

/// `CU_MEM_ALLOCATION_TYPE_MANAGED`
const MANAGED: i32 = 2;

/// Returns true, and logs why, for pools of managed memory (CUDA 13) under a memory limit. Their memory moves between host and device, and
/// nothing tells how much of it is where. `cuMemAllocManaged` is offered.
fn is_refused(kind: i32) -> bool {
    static SAID: Throttle = Throttle::new();
    let is_refused = kind == MANAGED && session::is_memory_limited();
    if is_refused && SAID.allow() {
        log::line(vgpu_region::limits::LogLevel::Warn, format_args!("pools of managed memory are not offered under a memory limit"));
    }
    is_refused
}

/// `cuMemPoolSetAccess`
pub fn set_access(call: impl FnOnce() -> Status, pool: Handle) -> Status {
    if let Some(entry) = find(pool).filter(|_| !pool.is_null()) {
        entry.is_shared.store(true, Relaxed);
    }
    call()
}

/// `cuMemGetMemPool` and `cuMemGetDefaultMemPool`
pub unsafe fn get_at(call: impl FnOnce() -> Status, pool: *mut Handle, location: *const Location, kind: i32) -> Status {
    if is_refused(kind) {
        return NOT_SUPPORTED;
    }
    // SAFETY: as the caller promises.
    unsafe { get(call, pool, || Some(*location).filter(|location| location.kind == LOCATION_DEVICE).map(|location| location.id)) }
}

/// `cuDeviceGetMemPool` and `cuDeviceGetDefaultMemPool`. `device` is that of its memory; `None` if it is elsewhere.
pub unsafe fn get(call: impl FnOnce() -> Status, pool: *mut Handle, device: impl FnOnce() -> Option<Device>) -> Status {
    let status = call();
    // SAFETY: read only after the driver has written it.
    unsafe {
        // Fail closed: a pool that cannot be recorded is refused.
        if status == SUCCESS && !record_own(*pool, device()) {
            *pool = core::ptr::null_mut();
            return OUT_OF_MEMORY;
        }
    }
    status
}

/// `cuMemPoolCreate`
pub unsafe fn create(call: impl FnOnce() -> Status, pool: *mut Handle, properties: *const AllocationProp) -> Status {
    // SAFETY: as the caller promises.
    let Some(properties) = (unsafe { properties.as_ref() }) else { return call() };
    if is_refused(properties.kind) {
        return NOT_SUPPORTED;
    }
    let status = call();
    if status != SUCCESS {
        return status;
    }
    let location = properties.location;
    let record = if location.kind == LOCATION_DEVICE { (location.id as u64) << 32 } else { ELSEWHERE };
    // SAFETY: the driver has just written the handle, and the program has not seen it.
    let Some(entry) = add(unsafe { *pool }, record) else {
        // Fail closed: a pool that cannot be recorded is refused.
        // SAFETY: as above.
        unsafe { driver::pool_destroy(*pool) };
        return OUT_OF_MEMORY;
    };
    entry.is_shared.store(properties.handle_types != 0, Relaxed);
    SUCCESS
}

/// `cuMemPoolDestroy`. Allocations that still live keep their memory; from now on only NVML tells about it.
pub fn destroy(call: impl FnOnce() -> Status, pool: Handle) -> Status {
    let entry = find(pool).filter(|_| !pool.is_null());
    let gpu = entry.and_then(|entry| {
        let value = entry.record.load(Relaxed);
        if value == ELSEWHERE { None } else { session::ready()?.gpu((value >> 32) as Device) }
    });
    if let (Some(entry), Some(gpu)) = (entry, gpu) {
        settle_pool(gpu, pool, entry, None);
    }
    forget_usual();
    // Removed before the call, as the driver may give another thread the same handle.
    let (value, is_shared) = entry.map_or((0, false), Pool::leave);
    let status = call();
    // During the call another thread may have met it again as the usual pool.
    forget_usual();
    if status == SUCCESS {
        find(pool).map(Pool::leave);
        if let Some(gpu) = gpu {
            pending_frees::record_free(gpu, value as u32);
        }
    } else if entry.is_some() && find(pool).is_none() {
        add(pool, value).into_iter().for_each(|pool| pool.is_shared.store(is_shared, Relaxed));
    }
    status
}

/// Gives back the pools of a device whose primary context is gone. Those that still exist are recorded again when they are used.
pub fn forget_device(gpu: &Gpu) {
    forget_usual();
    for pool in pool_table::all().filter(|pool| pool.handle_on(gpu).is_some()) {
        let (value, _) = pool.leave();
        account::release(gpu, value as u32);
    }
    overhead::reconcile(gpu);
}

/// `cuMemPoolTrimTo`
pub fn trim(call: impl FnOnce() -> Status) -> Status {
    let status = call();
    settle_all();
    status
}

/// `cuDeviceGraphMemTrim`
pub fn trim_graphs(call: impl FnOnce() -> Status) -> Status {
    let status = call();
    graph_memory::trimmed();
    settle_all();
    status
}

/// `cuDeviceSetMemPool` and `cuMemSetMemPool`
pub fn set_usual(call: impl FnOnce() -> Status) -> Status {
    let status = call();
    forget_usual();
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_is_cudas() {
        assert_eq!(MANAGED, cudarc::driver::sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED as i32);
    }
}
