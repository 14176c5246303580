//! What keeps physical memory alive besides handles and mappings: sparse arrays that it is mapped into, and multicast objects that it
//! is bound to. Each counts as one mapping more, until the keeper is unbound or gone.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{array, known, near, physical};
use crate::cuda::{DevicePtr, Handle, OUT_OF_MEMORY, SUCCESS, Status};
use crate::driver;

/// One keeper: what keeps (0 is a free place, 1 one being written), where in it, and which handle's memory.
struct Keeper {
    owner: AtomicU64,
    offset: AtomicU64,
    handle: AtomicU64,
}

static KEEPERS: [Keeper; 1024] =
    [const { Keeper { owner: AtomicU64::new(0), offset: AtomicU64::new(0), handle: AtomicU64::new(0) } }; 1024];

/// One above the highest place ever taken.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Notes that `owner` keeps the memory behind `handle`, once for each offset. Whether that is new.
///
/// # Errors
/// CUDA's out-of-memory code if it cannot be noted.
fn add(owner: u64, offset: u64, handle: u64) -> Result<bool, Status> {
    let same = |keeper: &&Keeper| {
        keeper.owner.load(Acquire) == owner && keeper.offset.load(Relaxed) == offset && keeper.handle.load(Relaxed) == handle
    };
    if physical::charged(handle).is_none() || KEEPERS.iter().any(|keeper| same(&keeper)) {
        return Ok(false);
    }
    let free = |keeper: &Keeper| keeper.owner.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
    let Some((place, keeper)) = KEEPERS.iter().enumerate().find(|(_, keeper)| free(keeper)) else { return Err(OUT_OF_MEMORY) };
    USED.fetch_max(place + 1, AcqRel);
    keeper.offset.store(offset, Relaxed);
    keeper.handle.store(handle, Relaxed);
    let kept = physical::keep(handle);
    // What was released meanwhile is nobody's to keep.
    keeper.owner.store(if kept == Ok(true) { owner } else { 0 }, Release);
    kept
}

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

fn remove(which: impl Fn(u64, u64, u64) -> bool) {
    for keeper in KEEPERS.iter().take(USED.load(Acquire)) {
        let owner = keeper.owner.load(Acquire);
        let is_meant = owner > 1 && which(owner, keeper.offset.load(Relaxed), keeper.handle.load(Relaxed));
        if is_meant && keeper.owner.compare_exchange(owner, 1, AcqRel, Relaxed).is_ok() {
            let handle = keeper.handle.load(Relaxed);
            keeper.owner.store(0, Release);
            physical::let_go(handle);
        }
    }
}

/// An array or a multicast object is gone, and keeps nothing any more.
pub fn forget_owner(owner: u64) {
    remove(|there, _, _| there == owner);
}

/// Said of an owner whose handle may be another's by the time that it is forgotten.
const PARTING: u64 = 1 << 63;

fn rename(from: u64, to: u64) {
    for keeper in KEEPERS.iter().take(USED.load(Acquire)) {
        _ = keeper.owner.compare_exchange(from, to, AcqRel, Relaxed);
    }
}

/// Lets go of an object with `call`, and then of what it keeps, unless that fails.
pub fn part(owner: u64, call: impl FnOnce() -> Status) -> Status {
    rename(owner, owner | PARTING);
    let status = call();
    if status == SUCCESS {
        forget_owner(owner | PARTING)
    } else {
        rename(owner | PARTING, owner)
    }
    status
}

/// `CU_MEM_OPERATION_TYPE_MAP`
const MAP: i32 = 1;

/// `CUarrayMapInfo`, up to what is read.
#[repr(C)]
#[derive(Debug)]
pub struct MapInfo {
    resource_kind: i32,
    resource: u64,
    subresource_kind: i32,
    subresource: [u64; 4],
    operation: i32,
    handle_kind: i32,
    handle: u64,
    offset: u64,
    rest: [u32; 4],
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
    let status = unsafe { array::destroy(real, array) };
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
    let status = match known::current() {
        // SAFETY: the object was just made, and the program is about to hear that it was not.
        Ok(current) if !handle.is_null() => near::guard(current.gpu, call, || unsafe { _ = driver::physical_release(*handle) }),
        _ => call(),
    };
    // SAFETY: the driver has just written the handle, and the program has not seen it.
    if status == SUCCESS { unsafe { physical::counted(handle) } } else { status }
}

/// `cuMulticastAddDevice`
pub unsafe fn multicast_add(real: unsafe extern "C" fn(u64, i32) -> Status, object: u64, device: i32) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(object, device) };
    match known::current() {
        // A device cannot be taken out again; what it took counts.
        Ok(current) => near::guard(current.gpu, call, || ()),
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
    use core::mem::{offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn layouts_are_cudas() {
        assert_eq!(size_of::<MapInfo>(), size_of::<sys::CUarrayMapInfo>());
        assert_eq!(offset_of!(MapInfo, resource), offset_of!(sys::CUarrayMapInfo, resource));
        assert_eq!(offset_of!(MapInfo, operation), offset_of!(sys::CUarrayMapInfo, memOperationType));
        assert_eq!(offset_of!(MapInfo, handle), offset_of!(sys::CUarrayMapInfo, memHandle));
        assert_eq!(MAP, sys::CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP as i32);
    }

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
            assert_eq!(physical::map(map, at, bytes, 0, object, 0), SUCCESS);
            assert_eq!(physical::release(release, memory), SUCCESS);
            assert_eq!(physical::release(fail, object), FAILED);
            assert_eq!(physical::release(release, object), SUCCESS);
            assert_eq!(physical::charged(memory), Some((0, 2)), "the mapping keeps the object, and that the memory");
            assert_eq!(physical::unmap(unmap, at, bytes), SUCCESS);
            assert_eq!((physical::charged(memory), physical::charged(object)), (None, None));

            // Without a mapping it goes with its handle; not if that fails.
            physical::note_for_test(memory, 2);
            assert_eq!(multicast_create(create, &raw mut object, core::ptr::null()), SUCCESS);
            assert_eq!(multicast_bind(bind, object, 0, memory, 0, bytes, 0), SUCCESS);
            assert_eq!(physical::release(release, memory), SUCCESS);
            assert_eq!(physical::release(fail, object), FAILED);
            assert_eq!(physical::charged(memory), Some((0, 2)));
            assert_eq!(physical::release(release, object), SUCCESS);
            assert_eq!(physical::charged(memory), None);
        }
    }

    #[test]
    fn memory_of_others_needs_no_keeper() {
        assert_eq!(add(0x61, 0, 0x7000_0002), Ok(false));
        assert!(!KEEPERS.iter().any(|keeper| keeper.owner.load(Relaxed) == 0x61));
    }
}
