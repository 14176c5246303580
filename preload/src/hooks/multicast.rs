//! Sparse arrays, multicast objects and logical endpoints, which keep the physical memory that is mapped into or bound to them.

use crate::hooks::vmm;
use crate::loader::driver;
use crate::memory::admission::guard::guard;
use crate::memory::admission::target::with_current;
use crate::memory::objects::physical::{self, add, remove};
use vgpu_cuda_abi::cuda::{SUCCESS, Status};
use vgpu_cuda_abi::descriptors::{MAP, MapInfo};

/// `cuMulticastBindMem`, `cuLogicalEndpointBindMem`, and the forms for addresses. `kept` are offsets in the object, and the handles of the
/// memory. Recorded before the call, as another thread may release a handle during it.
pub fn bind(call: impl FnOnce() -> Status, object: u64, mut kept: impl Iterator<Item = (u64, u64)>) -> Status {
    let Some((offset, handle)) = kept.next() else { return call() };
    let is_new = match add(object, offset, handle) {
        Ok(is_new) => is_new,
        Err(status) => return status,
    };
    // At most as deep as there is room for keepers.
    let status = bind(call, object, kept);
    if status != SUCCESS && is_new {
        remove(|owner, there, what| (owner, there, what) == (object, offset, handle));
    }
    status
}

/// `cuMemMapArrayAsync`. Which tiles a later call unmaps is not followed: memory that was ever mapped into an array stays charged until the
/// array is destroyed.
pub unsafe fn map_array(call: impl FnOnce() -> Status, list: *const MapInfo, count: u32) -> Status {
    // SAFETY: as the caller promises.
    let list = if list.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(list, count as usize) } };
    // Recorded before the call, as another thread may release the handle during it.
    let mut mapped = list.iter().filter(|info| info.operation == MAP && info.handle != 0);
    match mapped.try_for_each(|info| add(info.resource, 0, info.handle).map(|_| ())) {
        Ok(()) => call(),
        Err(status) => status,
    }
}

/// `cuMulticastCreate`
pub unsafe fn create(call: impl FnOnce() -> Status, handle: *mut u64) -> Status {
    if handle.is_null() {
        return call();
    }
    // SAFETY: the object was just made, and the program has not seen it.
    let undo = || _ = unsafe { driver::physical_release(*handle) };
    // SAFETY: as the caller promises.
    unsafe { vmm::counted(|| with_current(call, |current, call| guard(current.gpu, call, undo)), handle) }
}

/// `cuMulticastAddDevice`, and calls that make a logical endpoint or add a device to one. A device cannot be taken out again, so what it took
/// only counts.
pub fn grow(call: impl FnOnce() -> Status) -> Status {
    with_current(call, |current, call| guard(current.gpu, call, || ()))
}

/// `cuMulticastUnbind`
pub fn unbind(call: impl FnOnce() -> Status, object: u64, device: i32, offset: usize, bytes: usize) -> Status {
    let status = call();
    if status == SUCCESS {
        let range = offset as u64..(offset as u64).saturating_add(bytes as u64);
        // The same range may still be bound on another device.
        let is_there = |handle| physical::charged(handle).is_none_or(|(there, granules)| there == device || granules == 0);
        remove(|owner, there, handle| owner == object && range.contains(&there) && is_there(handle));
    }
    status
}

/// Bit of an owner that is a logical endpoint: its number could be another object's handle.
const ENDPOINT: u64 = 1 << 62;

/// Returns the owner of what is bound to a logical endpoint.
pub fn endpoint(id: u32) -> u64 {
    ENDPOINT | u64::from(id)
}

/// `cuLogicalEndpointDestroy`, which unbinds what this process has bound
pub fn destroy_endpoint(call: impl FnOnce() -> Status, id: u32) -> Status {
    physical::release_object(endpoint(id), call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::objects::physical::{KEEPERS, forget_owner};
    use core::iter::once;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_bound_handle_outlives_its_release_until_it_is_unbound() {
        let handle = 0x7000_0001;
        physical::record_for_test(handle, 3);
        assert_eq!([add(0x51, 0, handle), add(0x51, 0, handle), add(0x52, 4096, handle)], [Ok(true), Ok(false), Ok(true)]);
        assert_eq!(bind(|| 1, 0x51, once((0, handle))), 1);
        assert!(KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x51), "the first binding stays when the second fails");
        assert_eq!(bind(|| 1, 0x53, once((0, handle))), 1);
        physical::release_for_test(handle);
        assert!(physical::charged(handle).is_some());
        assert_eq!(unbind(|| SUCCESS, 0x52, 1, 0, 8192), SUCCESS);
        assert!(KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x52), "it is bound on another device");
        assert_eq!(unbind(|| SUCCESS, 0x52, 0, 0, 8192), SUCCESS);
        assert!(!KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x52));
        assert!(physical::charged(handle).is_some());
        forget_owner(0x51);
        assert!(physical::charged(handle).is_none());
    }

    #[test]
    fn a_mapped_multicast_object_keeps_the_memory_bound_to_it() {
        const OBJECT: u64 = 0x7000_0203;
        const FAILED: Status = 1;
        let (memory, at, bytes, mut object) = (0x7000_0204, 0x7d00_0000_0000, 4 << 20, 0);
        let object_at = &raw mut object;
        let make = || {
            // SAFETY: a variable of the test's own.
            let call = || unsafe {
                *object_at = OBJECT;
                SUCCESS
            };
            physical::record_for_test(memory, 2);
            // SAFETY: as above.
            assert_eq!(unsafe { create(call, object_at) }, SUCCESS);
            assert_eq!(bind(|| SUCCESS, OBJECT, once((0, memory))), SUCCESS);
        };
        make();
        assert_eq!(vmm::map(|| SUCCESS, at, bytes, OBJECT), SUCCESS);
        assert_eq!(vmm::release(|| SUCCESS, memory), SUCCESS);
        assert_eq!(vmm::release(|| FAILED, OBJECT), FAILED);
        assert_eq!(vmm::release(|| SUCCESS, OBJECT), SUCCESS);
        assert_eq!(physical::charged(memory), Some((0, 2)), "the mapping keeps the object, which keeps the memory");
        assert_eq!(vmm::unmap(|| SUCCESS, at, bytes), SUCCESS);
        assert_eq!((physical::charged(memory), physical::charged(OBJECT)), (None, None));

        // Without a mapping the memory goes with the object's handle, unless its release fails.
        make();
        assert_eq!(vmm::release(|| SUCCESS, memory), SUCCESS);
        assert_eq!(vmm::release(|| FAILED, OBJECT), FAILED);
        assert_eq!(physical::charged(memory), Some((0, 2)));
        assert_eq!(vmm::release(|| SUCCESS, OBJECT), SUCCESS);
        assert_eq!(physical::charged(memory), None);
    }

    #[test]
    fn a_logical_endpoint_keeps_the_memory_bound_to_it() {
        let handle = 0x7000_0301;
        physical::record_for_test(handle, 3);
        assert_eq!(bind(|| SUCCESS, endpoint(7), once((0, handle))), SUCCESS);
        physical::release_for_test(handle);
        assert_eq!(unbind(|| SUCCESS, endpoint(8), 0, 0, 8192), SUCCESS);
        assert_eq!(unbind(|| SUCCESS, 7, 0, 0, 8192), SUCCESS, "another object with that number");
        assert_eq!(destroy_endpoint(|| 1, 7), 1);
        assert_eq!(physical::charged(handle), Some((0, 3)));
        assert_eq!(destroy_endpoint(|| SUCCESS, 7), SUCCESS);
        assert_eq!(physical::charged(handle), None);
    }

    #[test]
    fn uncharged_memory_needs_no_keeper() {
        assert_eq!(add(0x61, 0, 0x7000_0002), Ok(false));
        assert!(!KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x61));
    }
}
