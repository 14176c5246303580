//! Pools by the place of their memory: on which device, on the host, or managed, which CUDA 13 has.

use core::ffi::c_void;

use crate::hooks::pools;
use crate::memory::objects::{pool_table, usual_pool};
use crate::os::log;
use crate::os::log::Seldom;
use crate::session;
use vgpu_cuda_abi::cuda::{AllocationProp, Handle, LOCATION_DEVICE, Location, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, Status};

/// `CU_MEM_ALLOCATION_TYPE_MANAGED`
const MANAGED: i32 = 2;
static SAID: Seldom = Seldom::new();

/// Managed memory of pools moves between host and device as it likes, and nobody tells how much of it is where: under a limit it is
/// not offered. `cuMemAllocManaged` is.
fn refuse_managed() -> Status {
    if SAID.now() {
        log::line(vgpu_region::limits::LogLevel::Warn, format_args!("pools of managed memory are not offered under a memory limit"));
    }
    NOT_SUPPORTED
}

/// `cuMemPoolCreate`
pub unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, *const AllocationProp) -> Status,
    pool: *mut Handle,
    properties: *const AllocationProp,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        match properties.as_ref() {
            Some(known) if known.kind == MANAGED && session::is_memory_limited() => refuse_managed(),
            _ => pools::create(real, pool, properties),
        }
    }
}

/// `cuMemGetDefaultMemPool` and `cuMemGetMemPool`
pub unsafe fn get(
    real: unsafe extern "C" fn(*mut Handle, *mut Location, i32) -> Status,
    pool: *mut Handle,
    location: *mut Location,
    kind: i32,
) -> Status {
    if kind == MANAGED && session::is_memory_limited() {
        return refuse_managed();
    }
    // SAFETY: the program's own arguments, read only after the driver has accepted them.
    unsafe {
        let status = real(pool, location, kind);
        if status == SUCCESS {
            let Location { kind, id } = *location;
            // What cannot be watched cannot be had.
            if !pool_table::note(*pool, (kind == LOCATION_DEVICE).then_some(id)) {
                *pool = core::ptr::null_mut();
                return OUT_OF_MEMORY;
            }
        }
        status
    }
}

/// `cuMemSetMemPool`
pub unsafe fn set(
    real: unsafe extern "C" fn(*mut c_void, i32, Handle) -> Status,
    location: *mut c_void,
    kind: i32,
    pool: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(location, kind, pool) };
    usual_pool::forget_usual();
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
