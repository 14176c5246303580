//! Sparse arrays and multicast objects, which keep the physical memory that is mapped into or bound to them.

use core::ffi::c_void;

use crate::hooks::{arrays, vmm};
use crate::loader::driver;
use crate::memory::admission::guard;
use crate::memory::objects::physical::{add, forget_owner, remove};
use crate::memory::objects::{context_table, physical};
use vgpu_cuda_abi::cuda::{DevicePtr, Handle, SUCCESS, Status};
use vgpu_cuda_abi::descriptors::{MAP, MapInfo};

/// Binds with `call` what `handle` stands for; it is noted before, as the handle may be released while the driver is at it.
fn bind(object: u64, offset: usize, handle: Option<u64>, call: impl FnOnce() -> Status) -> Status {
    let is_new = match handle.map_or(Ok(false), |handle| add(object, offset as u64, handle)) {
        Ok(is_new) => is_new,
        Err(status) => return status,
    };
    let status = call();
    if status != SUCCESS && is_new {
        remove(|owner, there, what| owner == object && there == offset as u64 && Some(what) == handle);
    }
    status
}

/// `cuMemMapArrayAsync`: which tiles of an array a later unmapping empties is not followed; what was ever mapped into an array stays
/// charged until the array is destroyed.
pub unsafe fn map_array(
    real: unsafe extern "C" fn(*mut MapInfo, u32, Handle) -> Status,
    list: *mut MapInfo,
    count: u32,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments: null or a list of that many entries.
    unsafe {
        let known: &[MapInfo] = if list.is_null() { &[] } else { core::slice::from_raw_parts(list, count as usize) };
        // Noted before: the handle may be released while the driver is still at it.
        let mut mapped = known.iter().filter(|info| info.operation == MAP && info.handle != 0);
        match mapped.try_for_each(|info| add(info.resource, 0, info.handle).map(|_| ())) {
            Ok(()) => real(list, count, stream),
            Err(status) => status,
        }
    }
}

/// `cuArrayDestroy` and `cuMipmappedArrayDestroy`
pub unsafe fn array_destroy(real: unsafe extern "C" fn(Handle) -> Status, array: Handle) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { arrays::destroy(real, array) };
    if status == SUCCESS {
        forget_owner(array as u64);
    }
    status
}

/// `cuMulticastCreate`
pub unsafe fn multicast_create(
    real: unsafe extern "C" fn(*mut u64, *const c_void) -> Status,
    handle: *mut u64,
    properties: *const c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(handle, properties) };
    let status = match context_table::current() {
        // SAFETY: the object was just made, and the program is about to hear that it was not.
        Ok(current) if !handle.is_null() => guard::guard(current.gpu, call, || unsafe { _ = driver::physical_release(*handle) }),
        _ => call(),
    };
    // SAFETY: the driver has just written the handle, and the program has not seen it.
    if status == SUCCESS { unsafe { vmm::counted(handle) } } else { status }
}

/// `cuMulticastAddDevice`
pub unsafe fn multicast_add(real: unsafe extern "C" fn(u64, i32) -> Status, object: u64, device: i32) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(object, device) };
    match context_table::current() {
        // A device cannot be taken out again; what it took counts.
        Ok(current) => guard::guard(current.gpu, call, || ()),
        Err(_) => call(),
    }
}

/// `cuMulticastBindMem`
pub unsafe fn multicast_bind(
    real: unsafe extern "C" fn(u64, usize, u64, usize, usize, u64) -> Status,
    object: u64,
    offset: usize,
    handle: u64,
    handle_offset: usize,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    bind(object, offset, Some(handle), || unsafe { real(object, offset, handle, handle_offset, bytes, flags) })
}

/// `cuMulticastBindAddr`
pub unsafe fn multicast_bind_address(
    real: unsafe extern "C" fn(u64, usize, DevicePtr, usize, u64) -> Status,
    object: u64,
    offset: usize,
    address: DevicePtr,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    bind(object, offset, physical::mapped_at(address), || unsafe { real(object, offset, address, bytes, flags) })
}

/// `cuMulticastUnbind`
pub unsafe fn multicast_unbind(
    real: unsafe extern "C" fn(u64, i32, usize, usize) -> Status,
    object: u64,
    device: i32,
    offset: usize,
    bytes: usize,
) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(object, device, offset, bytes) };
    if status == SUCCESS {
        let range = offset as u64..(offset as u64).saturating_add(bytes as u64);
        // On another device the same range may be bound still.
        let is_there = |handle| physical::charged(handle).is_none_or(|(there, granules)| there == device || granules == 0);
        remove(|owner, there, handle| owner == object && range.contains(&there) && is_there(handle));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::vmm;
    use crate::memory::objects::physical;
    use crate::memory::objects::physical::KEEPERS;
    use crate::memory::objects::physical::add;
    use crate::memory::objects::physical::forget_owner;
    use core::ffi::c_void;
    use core::sync::atomic::Ordering::Relaxed;
    use vgpu_cuda_abi::cuda::DevicePtr;
    use vgpu_cuda_abi::cuda::SUCCESS;
    use vgpu_cuda_abi::cuda::Status;
    
    

    #[test]
    fn a_kept_handle_outlives_its_release_until_its_keepers_are_gone() {
        let handle = 0x7000_0001;
        physical::note_for_test(handle, 3);
        assert_eq!([add(0x51, 0, handle), add(0x51, 0, handle), add(0x52, 4096, handle)], [Ok(true), Ok(false), Ok(true)]);
        assert_eq!(bind(0x51, 0, Some(handle), || 1), 1);
        assert!(KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x51), "bound before, whatever became of the second time");
        assert_eq!(bind(0x53, 0, Some(handle), || 1), 1);
        physical::let_go_handle_for_test(handle);
        assert!(physical::charged(handle).is_some());
        unsafe extern "C" fn unbind(_: u64, _: i32, _: usize, _: usize) -> Status {
            SUCCESS
        }
        // SAFETY: a function that only answers.
        unsafe {
            assert_eq!(multicast_unbind(unbind, 0x52, 1, 0, 8192), SUCCESS);
            assert!(KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x52), "it is bound on another device");
            assert_eq!(multicast_unbind(unbind, 0x52, 0, 0, 8192), SUCCESS);
        }
        assert!(!KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x52));
        assert!(physical::charged(handle).is_some());
        forget_owner(0x51);
        assert!(physical::charged(handle).is_none());
    }

    #[test]
    fn a_multicast_object_keeps_what_is_bound_to_it_while_it_is_mapped() {
        const OBJECT: u64 = 0x7000_0203;
        const FAILED: Status = 1;
        unsafe extern "C" fn create(handle: *mut u64, _: *const c_void) -> Status {
            // SAFETY: the test gives room.
            unsafe { *handle = OBJECT };
            SUCCESS
        }
        unsafe extern "C" fn bind(_: u64, _: usize, _: u64, _: usize, _: usize, _: u64) -> Status {
            SUCCESS
        }
        unsafe extern "C" fn map(_: DevicePtr, _: usize, _: usize, _: u64, _: u64) -> Status {
            SUCCESS
        }
        unsafe extern "C" fn unmap(_: DevicePtr, _: usize) -> Status {
            SUCCESS
        }
        unsafe extern "C" fn release(_: u64) -> Status {
            SUCCESS
        }
        unsafe extern "C" fn fail(_: u64) -> Status {
            FAILED
        }
        let (memory, at, bytes, mut object) = (0x7000_0204, 0x7d00_0000_0000, 4 << 20, 0);
        physical::note_for_test(memory, 2);
        // SAFETY: functions that only answer.
        unsafe {
            assert_eq!(multicast_create(create, &raw mut object, core::ptr::null()), SUCCESS);
            assert_eq!(multicast_bind(bind, object, 0, memory, 0, bytes, 0), SUCCESS);
            assert_eq!(vmm::map(map, at, bytes, 0, object, 0), SUCCESS);
            assert_eq!(vmm::release(release, memory), SUCCESS);
            assert_eq!(vmm::release(fail, object), FAILED);
            assert_eq!(vmm::release(release, object), SUCCESS);
            assert_eq!(physical::charged(memory), Some((0, 2)), "the mapping keeps the object, and that the memory");
            assert_eq!(vmm::unmap(unmap, at, bytes), SUCCESS);
            assert_eq!((physical::charged(memory), physical::charged(object)), (None, None));

            // Without a mapping it goes with its handle; not if that fails.
            physical::note_for_test(memory, 2);
            assert_eq!(multicast_create(create, &raw mut object, core::ptr::null()), SUCCESS);
            assert_eq!(multicast_bind(bind, object, 0, memory, 0, bytes, 0), SUCCESS);
            assert_eq!(vmm::release(release, memory), SUCCESS);
            assert_eq!(vmm::release(fail, object), FAILED);
            assert_eq!(physical::charged(memory), Some((0, 2)));
            assert_eq!(vmm::release(release, object), SUCCESS);
            assert_eq!(physical::charged(memory), None);
        }
    }

    #[test]
    fn memory_of_others_needs_no_keeper() {
        assert_eq!(add(0x61, 0, 0x7000_0002), Ok(false));
        assert!(!KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x61));
    }
}
