//! Arrays and mipmapped arrays. The driver lays them out; what they take it tells for an array whose memory is mapped later.

use vgpu_region::ledger::pages;

use crate::loader::driver;
use crate::memory::admission::claim::claim;
use crate::memory::granules::{GRANULE, rounded_pages};
use crate::memory::ledger::changes;
use crate::memory::objects::arrays::{ARRAYS, BYTES, give_back};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::{array_layout, context_table, small_arrays};
use crate::memory::reconcile::small_arrays::verify;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{
    ARRAY_DEFERRED, ARRAY_SPARSE, Array3dDescriptor, ArrayDescriptor, ArrayRequirements, Handle, OUT_OF_MEMORY, SUCCESS, Status,
};

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
        let bytes = if known { needs.size as u64 } else { array_layout::at_most(descriptor, levels) };
        (bytes, bytes.next_multiple_of((needs.alignment as u64).max(1)))
    }
}

/// Makes an array with `call`.
pub unsafe fn create_with(array: *mut Handle, descriptor: &Array3dDescriptor, levels: u32, call: impl FnOnce() -> Status) -> Status {
    if array.is_null() || descriptor.flags & (ARRAY_SPARSE | ARRAY_DEFERRED) != 0 {
        return call();
    }
    let Current { gpu, id, .. } = match context_table::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    // SAFETY: a descriptor that the program is about to use itself.
    let (said, most) = unsafe { requirements(gpu, descriptor, levels) };
    let bytes = if said == LEAST_SAID { array_layout::bytes(descriptor, levels).map_or(said, |bytes| bytes.min(said)) } else { said };
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
    if bytes > small_arrays::SMALL {
        claim.settle(rounded_pages(bytes, GRANULE));
    } else {
        claim.settle(small_arrays::add(gpu, bytes));
        verify(gpu, pages(most));
    }
    SUCCESS
}

/// The least that the driver says an array needs by itself. Beside others small ones take what they are.
const LEAST_SAID: u64 = 64 << 10;

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
    let (status, uncertain) = changes::together(|| {
        // SAFETY: the program's own argument.
        let status = unsafe { real(array) };
        let Some(value) = removed else { return (status, None) };
        match context_table::gpu_of((value >> 48) as u8) {
            Some(gpu) if status == SUCCESS => (status, Some((gpu, give_back(gpu, value & BYTES)))),
            _ => {
                ARRAYS.insert(array as u64, value);
                (status, None)
            }
        }
    });
    if let Some((gpu, pages)) = uncertain {
        verify(gpu, pages);
    }
    status
}

#[cfg(test)]
mod tests {
    
    use crate::memory::objects::array_layout;
    use vgpu_cuda_abi::cuda::Array3dDescriptor;

    #[test]
    fn the_smallest_take_what_an_h200_gave_them() {
        let floats = |width, height| Array3dDescriptor { width, height, depth: 0, format: 0x20, channels: 1, flags: 0 };
        let taken = [floats(1024, 0), floats(64, 64), floats(1, 1)].map(|descriptor| array_layout::bytes(&descriptor, 0));
        assert_eq!(taken, [Some(32 << 10), Some(16 << 10), Some(512)]);
    }
}
