//! Physical memory by its handle: made on a device that the call names, and never handed out for memory that can move. A handle would keep
//! the memory that the contents have left.

use core::ffi::c_void;

use crate::hooks::{ipc, vmm};
use crate::memory::objects::exports;
use crate::residency::blocks;
use crate::residency::room::with_room;
use vgpu_cuda_abi::cuda::{AllocationProp, DevicePtr, INVALID_VALUE, LOCATION_DEVICE, NOT_SUPPORTED, Status};

/// `cuMemCreate`
pub unsafe fn create(call: impl Fn() -> Status, handle: *mut u64, bytes: usize, properties: *const AllocationProp) -> Status {
    // SAFETY: the program's own, or null, which is the driver's to refuse.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let device = location.filter(|location| location.kind == LOCATION_DEVICE).map(|location| location.id);
    // SAFETY: as the caller promises.
    unsafe { vmm::create(|| if device.is_some() { with_room(device, &call) } else { call() }, handle, bytes, properties) }
}

/// `cuMemRetainAllocationHandle`. The driver gives no handle of memory from `cuMemAlloc` either.
pub unsafe fn retain(call: impl FnOnce() -> Status, handle: *mut u64, address: *mut c_void) -> Status {
    if blocks::contains(address as DevicePtr) {
        return INVALID_VALUE;
    }
    // SAFETY: as the caller promises.
    unsafe { vmm::counted(call, handle) }
}

/// `cuMemGetHandleForAddressRange`
pub unsafe fn export_range(call: impl FnOnce() -> Status, out: *mut c_void, kind: i32, address: DevicePtr) -> Status {
    if blocks::contains(address) {
        return NOT_SUPPORTED;
    }
    // SAFETY: as the caller promises.
    unsafe { ipc::export(call, out, kind, || exports::key_of(address)) }
}
