//! Linear memory of evictable containers, which the library makes so that it can move ([`crate::residency`]). Allocations that share a
//! granule are the driver's own and stay on the device.

use core::ffi::c_void;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::granules::SMALL;
use crate::memory::objects::context_table::Current;
use crate::residency::room::with_room;
use crate::residency::{blocks, gate, mover};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_RANGE_START, ATTRIBUTE_VMM_SUPPORTED, DevicePtr, SUCCESS, Status};

/// Returns true if an allocation of `bytes` is made so that it can move. Starts the thread that moves it.
#[inline]
pub fn is_for(current: &Current, bytes: u64) -> bool {
    bytes > SMALL && current.context.is_some() && is_possible_on(current.gpu)
}

/// Returns true if memory on this GPU may move, the device can map memory, and the process has the thread.
#[inline]
pub fn is_possible_on(gpu: &Gpu) -> bool {
    /// 0 if not yet known, 1 if possible, 2 if not.
    static POSSIBLE: AtomicU8 = AtomicU8::new(0);
    if !gate::is_evictable(gpu) {
        return false;
    }
    if POSSIBLE.load(Relaxed) == 0 {
        let is_possible = driver::attribute_of(gpu.device, ATTRIBUTE_VMM_SUPPORTED) != 0 && mover::start_once();
        POSSIBLE.store(if is_possible { 1 } else { 2 }, Relaxed);
    }
    POSSIBLE.load(Relaxed) == 1
}

/// Makes memory that can move.
///
/// # Safety
/// `address` is valid for a write.
pub unsafe fn make(current: Current, address: *mut DevicePtr, bytes: usize) -> Status {
    let device = current.gpu.device;
    // SAFETY: the caller's promise.
    with_room(Some(device), || gate::pass(|| unsafe { blocks::allocate(device, current.id, address, bytes) }))
}

/// Frees memory that can move.
pub fn free(address: DevicePtr) -> Status {
    gate::pass(|| blocks::free(address))
}

/// Makes a call that the driver answers only while the memory that it names is mapped: the gate, which every call passes, sees to that.
#[inline]
pub fn ask(call: impl FnOnce() -> Status) -> Status {
    call()
}

/// `cuMemGetAddressRange_v2`. The driver knows the blocks that an allocation consists of.
pub unsafe fn range(call: impl FnOnce() -> Status, base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr) -> Status {
    let status = call();
    if status != SUCCESS {
        return status;
    }
    // SAFETY: the program's own, to which the driver has just written, or null.
    let (base, bytes) = unsafe { (base.as_mut(), bytes.as_mut()) };
    let range = base.as_ref().map_or_else(|| blocks::range_of(address), |base| blocks::range_from(**base));
    if let Some((first, size)) = range {
        base.into_iter().for_each(|base| *base = first);
        bytes.into_iter().for_each(|bytes| *bytes = size);
    }
    SUCCESS
}

/// `cuPointerGetAttribute`, with the same answers.
pub unsafe fn attribute(call: impl FnOnce() -> Status, value: *mut c_void, attribute: i32, address: DevicePtr) -> Status {
    let status = call();
    if status == SUCCESS {
        // SAFETY: as the caller promises.
        unsafe { correct(value, attribute, address) };
    }
    status
}

/// `cuPointerGetAttributes`
pub unsafe fn attributes(
    call: impl FnOnce() -> Status,
    count: u32,
    attributes: *const i32,
    values: *const *mut c_void,
    address: DevicePtr,
) -> Status {
    let status = call();
    if status == SUCCESS {
        // SAFETY: the driver has just read the lists of this length, and has written to where they point.
        (0..count as usize).for_each(|place| unsafe { correct(values.add(place).read(), attributes.add(place).read(), address) });
    }
    status
}

/// Corrects the range in the value of an attribute.
///
/// # Safety
/// The driver has just written the value.
unsafe fn correct(value: *mut c_void, attribute: i32, address: DevicePtr) {
    if !matches!(attribute, ATTRIBUTE_RANGE_START | ATTRIBUTE_RANGE_SIZE) || value.is_null() {
        return;
    }
    if let Some((first, size)) = blocks::range_of(address) {
        // SAFETY: both values are 64 bits long.
        unsafe { value.cast::<u64>().write(if attribute == ATTRIBUTE_RANGE_START { first } else { size as u64 }) };
    }
}
