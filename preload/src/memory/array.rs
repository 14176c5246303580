//! Arrays and mipmapped arrays. The driver lays them out; what they take it tells for an array whose memory is mapped later.

mod layout;
mod small;

use core::sync::atomic::Ordering::Acquire;

use vgpu_region::ledger::pages;

use super::account::{self, claim};
use super::known::{self, Current};
use super::table::Table;
use super::{GRANULE, rounded_pages};
use crate::cuda::{
    ARRAY_DEFERRED, ARRAY_SPARSE, Array3dDescriptor, ArrayDescriptor, ArrayRequirements, Handle, OUT_OF_MEMORY, SUCCESS, Status,
};
use crate::driver;
use crate::session::Gpu;
pub use small::{has_small, told, uncertain};

/// Arrays by handle: bytes in the lower 48 bits, the context's place above.
static ARRAYS: Table = Table::new();

const BYTES: u64 = (1 << 48) - 1;

/// What an array like this takes in bytes, and the most that it can take where it has to be aligned: asked of the driver for a twin
/// without memory, else computed generously.
unsafe fn requirements(gpu: &Gpu, descriptor: &Array3dDescriptor, levels: u32) -> (u64, u64) {
    let twin = Array3dDescriptor { flags: descriptor.flags | ARRAY_DEFERRED, ..*descriptor };
    let mut handle = core::ptr::null_mut();
    let mut needs = ArrayRequirements::default();
    // SAFETY: the driver reads the descriptor, writes a handle and the requirements; the twin is destroyed at once.
    unsafe {
        let known = if levels == 0 {
            driver::array_create(&raw mut handle, &raw const twin) == SUCCESS && {
                let status = driver::array_requirements(&raw mut needs, handle, gpu.device);
                driver::array_destroy(handle);
                status == SUCCESS
            }
        } else {
            driver::mipmap_create(&raw mut handle, &raw const twin, levels) == SUCCESS && {
                let status = driver::mipmap_requirements(&raw mut needs, handle, gpu.device);
                driver::mipmap_destroy(handle);
                status == SUCCESS
            }
        };
        let bytes = if known { needs.size as u64 } else { layout::at_most(descriptor, levels) };
        (bytes, bytes.next_multiple_of((needs.alignment as u64).max(1)))
    }
}

/// Makes an array with `call`.
pub unsafe fn create_with(array: *mut Handle, descriptor: &Array3dDescriptor, levels: u32, call: impl FnOnce() -> Status) -> Status {
    if array.is_null() || descriptor.flags & (ARRAY_SPARSE | ARRAY_DEFERRED) != 0 {
        return call();
    }
    let Current { gpu, id, .. } = match known::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    // SAFETY: a descriptor that the program is about to use itself.
    let (said, most) = unsafe { requirements(gpu, descriptor, levels) };
    let bytes = if said == LEAST_SAID { layout::bytes(descriptor, levels).map_or(said, |bytes| bytes.min(said)) } else { said };
    let claim = match claim(gpu, rounded_pages(most, GRANULE)) {
        Ok(claim) => claim,
        Err(status) => return status,
    };
    let status = call();
    if status != SUCCESS {
        claim.drop_all();
        return status;
    }
    // SAFETY: the driver has just written the handle.
    let handle = unsafe { *array };
    if !ARRAYS.insert(handle as u64, u64::from(id) << 48 | (bytes & BYTES)) {
        // What cannot be given back one day cannot be had.
        // SAFETY: the array was just made, and the program is about to hear that it was not.
        unsafe { if levels == 0 { driver::array_destroy(handle) } else { driver::mipmap_destroy(handle) } };
        claim.drop_all();
        return OUT_OF_MEMORY;
    }
    if bytes > small::SMALL {
        claim.settle(rounded_pages(bytes, GRANULE));
    } else {
        claim.settle(small::add(gpu, bytes));
        small::verify(gpu, pages(most));
    }
    SUCCESS
}

/// The least that the driver says an array needs by itself. Beside others small ones take what they are.
const LEAST_SAID: u64 = 64 << 10;

/// Gives back what an array cost. Gives the pages that small ones may still take.
fn give_back(gpu: &Gpu, bytes: u64) -> u32 {
    if bytes > small::SMALL {
        account::release(gpu, rounded_pages(bytes, GRANULE));
        return 0;
    }
    let cost = small::remove(gpu, bytes);
    account::release(gpu, cost);
    cost
}

/// `cuArrayCreate_v2`
pub unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, *const ArrayDescriptor) -> Status,
    array: *mut Handle,
    descriptor: *const ArrayDescriptor,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        let Some(&ArrayDescriptor { width, height, format, channels }) = descriptor.as_ref() else { return real(array, descriptor) };
        let descriptor_3d = Array3dDescriptor { width, height, depth: 0, format, channels, flags: 0 };
        create_with(array, &descriptor_3d, 0, || real(array, descriptor))
    }
}

/// `cuArray3DCreate_v2`
pub unsafe fn create_3d(
    real: unsafe extern "C" fn(*mut Handle, *const Array3dDescriptor) -> Status,
    array: *mut Handle,
    descriptor: *const Array3dDescriptor,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        let Some(known) = descriptor.as_ref() else { return real(array, descriptor) };
        create_with(array, known, 0, || real(array, descriptor))
    }
}

/// `cuMipmappedArrayCreate`
pub unsafe fn create_mipmapped(
    real: unsafe extern "C" fn(*mut Handle, *const Array3dDescriptor, u32) -> Status,
    array: *mut Handle,
    descriptor: *const Array3dDescriptor,
    levels: u32,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        let Some(known) = descriptor.as_ref() else { return real(array, descriptor, levels) };
        create_with(array, known, levels.max(1), || real(array, descriptor, levels))
    }
}

/// `cuArrayDestroy` and `cuMipmappedArrayDestroy`
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, array: Handle) -> Status {
    let removed = ARRAYS.remove(array as u64);
    let (status, uncertain) = account::together(|| {
        // SAFETY: the program's own argument.
        let status = unsafe { real(array) };
        let Some(value) = removed else { return (status, None) };
        match known::gpu_of((value >> 48) as u8) {
            Some(gpu) if status == SUCCESS => (status, Some((gpu, give_back(gpu, value & BYTES)))),
            _ => {
                ARRAYS.insert(array as u64, value);
                (status, None)
            }
        }
    });
    if let Some((gpu, pages)) = uncertain {
        small::verify(gpu, pages);
    }
    status
}

/// A context is gone, and its arrays with it.
pub fn forget_context(gpu: &Gpu, id: u8) {
    for (array, record) in ARRAYS.iter() {
        if (record.load(Acquire) >> 48) as u8 == id
            && let Some(value) = ARRAYS.remove(array)
        {
            give_back(gpu, value & BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_take_what_an_h200_gave_them() {
        let floats = |width, height| Array3dDescriptor { width, height, depth: 0, format: 0x20, channels: 1, flags: 0 };
        let taken = [floats(1024, 0), floats(64, 64), floats(1, 1)].map(|descriptor| layout::bytes(&descriptor, 0));
        assert_eq!(taken, [Some(32 << 10), Some(16 << 10), Some(512)]);
    }
}
