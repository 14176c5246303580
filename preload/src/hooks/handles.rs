//! Physical memory by its handle. Where memory can move the program has the library's own handle of it ([`virtual_handles`]): each call that
//! names a handle gets the driver's instead, and calls that name one or change a mapping are inside the gate as a whole, with their records.

use core::ffi::c_void;

use crate::hooks::{ipc, movable, multicast, vmm};
use crate::memory::objects::{exports, physical, virtual_handles};
use crate::residency::room::with_room;
use crate::residency::{blocks, gate};
use crate::session;
use vgpu_cuda_abi::cuda::{
    AllocationProp, Device, DevicePtr, Handle, INVALID_VALUE, LOCATION_DEVICE, NOT_SUPPORTED, SUCCESS, Status, WholeAllocationProp,
};
use vgpu_cuda_abi::descriptors::{MAP, MapInfo};

/// `cuMemCreate`
pub unsafe fn create(call: impl Fn() -> Status, handle: *mut u64, bytes: usize, properties: *const AllocationProp) -> Status {
    // SAFETY: the program's own, or null, which is the driver's to refuse.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let device = location.filter(|location| location.kind == LOCATION_DEVICE).map(|location| location.id);
    let Some(device) = device.filter(|_| !handle.is_null()) else { return call() };
    let call = || {
        let status = with_room(Some(device), &call);
        if status == SUCCESS && session::ready().and_then(|session| session.gpu(device)).is_some_and(movable::is_possible_on) {
            // SAFETY: the driver has read the properties, and has just written the handle, which the program has not seen.
            unsafe {
                let properties = properties.cast::<WholeAllocationProp>().read();
                virtual_handles::make(*handle, &properties).into_iter().for_each(|number| *handle = number);
            }
        }
        status
    };
    // SAFETY: as the caller promises.
    unsafe { vmm::create(call, handle, bytes, properties) }
}

/// `cuMemRelease`
pub unsafe fn release(real: unsafe extern "C" fn(u64) -> Status, handle: u64) -> Status {
    // SAFETY: the program's own call.
    gate::pass(|| ipc::release(|| unsafe { real(handle) }, handle))
}

/// `cuMemMap`
pub unsafe fn map(
    real: unsafe extern "C" fn(DevicePtr, usize, usize, u64, u64) -> Status,
    address: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Status {
    // SAFETY: the program's own call.
    let call = || unsafe { real(address, bytes, offset, virtual_handles::real(handle), flags) };
    gate::pass(|| vmm::map(call, address, bytes, handle))
}

/// `cuMemUnmap`
pub unsafe fn unmap(real: unsafe extern "C" fn(DevicePtr, usize) -> Status, address: DevicePtr, bytes: usize) -> Status {
    // SAFETY: the program's own call.
    gate::pass(|| ipc::unmap(|| unsafe { real(address, bytes) }, address, bytes))
}

/// `cuMemExportToShareableHandle`
pub unsafe fn export(
    real: unsafe extern "C" fn(*mut c_void, u64, i32, u64) -> Status,
    shareable: *mut c_void,
    handle: u64,
    kind: i32,
    flags: u64,
) -> Status {
    // SAFETY: the program's own call.
    let call = || unsafe { real(shareable, virtual_handles::real(handle), kind, flags) };
    // SAFETY: as the caller promises.
    gate::pass(|| unsafe { ipc::export(call, shareable, kind, || core::iter::once(handle)) })
}

/// `cuMemGetAllocationPropertiesFromHandle`
pub unsafe fn properties(real: unsafe extern "C" fn(*mut c_void, u64) -> Status, properties: *mut c_void, handle: u64) -> Status {
    // SAFETY: the program's own call.
    gate::pass(|| unsafe { real(properties, virtual_handles::real(handle)) })
}

/// `cuMemRetainAllocationHandle`. The driver gives no handle of memory from `cuMemAlloc` either.
pub unsafe fn retain(real: unsafe extern "C" fn(*mut u64, *mut c_void) -> Status, handle: *mut u64, address: *mut c_void) -> Status {
    if blocks::range_of(address as DevicePtr).is_some() {
        return INVALID_VALUE;
    }
    // SAFETY: the program's own call, and as the caller promises.
    gate::pass(|| unsafe { vmm::counted(|| real(handle, address), handle) })
}

/// `cuMemGetHandleForAddressRange`
pub unsafe fn export_range(
    real: unsafe extern "C" fn(*mut c_void, DevicePtr, usize, i32, u64) -> Status,
    out: *mut c_void,
    address: DevicePtr,
    bytes: usize,
    kind: i32,
    flags: u64,
) -> Status {
    if blocks::range_of(address).is_some() {
        return NOT_SUPPORTED;
    }
    // SAFETY: the program's own call, and as the caller promises.
    gate::pass(|| unsafe { ipc::export(|| real(out, address, bytes, kind, flags), out, kind, || exports::keys_in(address, bytes as u64)) })
}

/// Binds memory to an object with `call`, which takes the driver's handle.
fn bind_one(object: u64, offset: u64, handle: u64, call: impl FnOnce(u64) -> Status) -> Status {
    gate::pass(|| multicast::bind(|| call(virtual_handles::real(handle)), object, core::iter::once((offset, handle))))
}

/// `cuMulticastBindMem`
pub unsafe fn bind(
    real: unsafe extern "C" fn(u64, usize, u64, usize, usize, u64) -> Status,
    object: u64,
    offset: usize,
    handle: u64,
    handle_offset: usize,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the program's own call.
    bind_one(object, offset as u64, handle, |handle| unsafe { real(object, offset, handle, handle_offset, bytes, flags) })
}

/// `cuMulticastBindMem_v2`
#[expect(clippy::too_many_arguments, reason = "those of the driver's function")]
pub unsafe fn bind_v2(
    real: unsafe extern "C" fn(u64, Device, usize, u64, usize, usize, u64) -> Status,
    object: u64,
    device: Device,
    offset: usize,
    handle: u64,
    handle_offset: usize,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the program's own call.
    bind_one(object, offset as u64, handle, |handle| unsafe { real(object, device, offset, handle, handle_offset, bytes, flags) })
}

/// `cuLogicalEndpointBindMem`
#[expect(clippy::too_many_arguments, reason = "those of the driver's function")]
pub unsafe fn bind_endpoint(
    real: unsafe extern "C" fn(u32, Device, usize, u64, u64, u64, u64) -> Status,
    id: u32,
    device: Device,
    offset: usize,
    handle: u64,
    handle_offset: u64,
    bytes: u64,
    flags: u64,
) -> Status {
    // SAFETY: the program's own call.
    let call = |handle| unsafe { real(id, device, offset, handle, handle_offset, bytes, flags) };
    bind_one(multicast::endpoint(id), offset as u64, handle, call)
}

/// `cuMulticastBindAddr` and its other forms: all memory that is mapped in the range is kept. Memory of `cuMemAlloc` is not the driver's to
/// bind.
pub fn bind_range(call: impl FnOnce() -> Status, object: u64, offset: u64, address: DevicePtr, bytes: u64) -> Status {
    if blocks::range_of(address).is_some() {
        return INVALID_VALUE;
    }
    multicast::bind(call, object, physical::mapped_in(address, bytes).map(|(from, handle)| (offset.saturating_add(from), handle)))
}

/// `cuMemMapArrayAsync`, one tile after another where a handle of the library's is among them.
pub unsafe fn map_array(
    real: unsafe extern "C" fn(*mut MapInfo, u32, Handle) -> Status,
    list: *mut MapInfo,
    count: u32,
    stream: Handle,
) -> Status {
    // SAFETY: as the caller promises.
    let tiles = if list.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(list, count as usize) } };
    let is_ours = |tile: &MapInfo| tile.operation == MAP && virtual_handles::is_one(tile.handle);
    let one_by_one = || {
        let map_one = |tile: &MapInfo| {
            let mut tile = *tile;
            tile.handle = if is_ours(&tile) { virtual_handles::real(tile.handle) } else { tile.handle };
            // SAFETY: the program's own call, with one of its tiles.
            unsafe { real(&raw mut tile, 1, stream) }
        };
        tiles.iter().map(map_one).find(|status| *status != SUCCESS).unwrap_or(SUCCESS)
    };
    // SAFETY: the program's own call.
    let call = || if tiles.iter().any(is_ours) { one_by_one() } else { unsafe { real(list, count, stream) } };
    // SAFETY: as the caller promises.
    gate::pass(|| unsafe { multicast::map_array(call, list, count) })
}
