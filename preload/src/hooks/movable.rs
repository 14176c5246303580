//! Linear memory of evictable containers, which the library makes so that it can move ([`crate::residency`]). Allocations that share a
//! granule are the driver's own and stay on the device.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::granules::SMALL;
use crate::memory::objects::context_table::Current;
use crate::residency::room::with_room;
use crate::residency::{blocks, gate, mover};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{ATTRIBUTE_VMM_SUPPORTED, DevicePtr, Status};

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
