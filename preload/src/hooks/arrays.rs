//! Arrays and mipmapped arrays. The driver tells the size only of an array whose memory is mapped later. It is asked for the
//! size of a twin of that kind first.

use vgpu_region::ledger::pages;

use crate::loader::driver;
use crate::memory::admission::acquire::{Estimate, Operation, Taken, acquire};
use crate::memory::admission::target::with_current;
use crate::memory::granules::{GRANULE, rounded_pages};
use crate::memory::ledger::changes;
use crate::memory::objects::arrays::{ARRAYS, BYTES, give_back};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::physical::forget_owner;
use crate::memory::objects::{array_layout, context_table, small_arrays};
use crate::memory::reconcile::small_arrays::verify;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{ARRAY_DEFERRED, ARRAY_SPARSE, Array3dDescriptor, ArrayDescriptor, ArrayRequirements, Handle, SUCCESS, Status};
use vgpu_cuda_abi::descriptors::{Descriptor, Descriptor3d};

/// A descriptor of an array, in any of CUDA's versions.
pub trait Describes {
    /// Returns the same description in the newest version.
    fn in_3d(&self) -> Array3dDescriptor;
}

impl Describes for Array3dDescriptor {
    fn in_3d(&self) -> Array3dDescriptor {
        *self
    }
}

impl Describes for ArrayDescriptor {
    fn in_3d(&self) -> Array3dDescriptor {
        let &Self { width, height, format, channels } = self;
        Array3dDescriptor { width, height, depth: 0, format, channels, flags: 0 }
    }
}

impl Describes for Descriptor3d {
    fn in_3d(&self) -> Array3dDescriptor {
        let &Self { width, height, depth, format, channels, flags } = self;
        let [width, height, depth] = [width, height, depth].map(|extent| extent as usize);
        Array3dDescriptor { width, height, depth, format, channels, flags }
    }
}

impl Describes for Descriptor {
    fn in_3d(&self) -> Array3dDescriptor {
        let &Self { width, height, format, channels } = self;
        Array3dDescriptor { width: width as usize, height: height as usize, depth: 0, format, channels, flags: 0 }
    }
}

/// Destroys an array of the library's own, or one that the program has not seen.
fn destroy_unseen(array: Handle, levels: u32) {
    // SAFETY: the array was just made, and only the caller knows it.
    unsafe { if levels == 0 { driver::array_destroy(array) } else { driver::mipmap_destroy(array) } };
}

/// Returns the bytes that such an array takes, and that size rounded up to its alignment: from a twin without memory, else from a generous
/// computation.
fn requirements(gpu: &Gpu, descriptor: &Array3dDescriptor, levels: u32) -> (u64, u64) {
    let twin = Array3dDescriptor { flags: descriptor.flags | ARRAY_DEFERRED, ..*descriptor };
    let mut handle = core::ptr::null_mut();
    let mut needs = ArrayRequirements::default();
    // SAFETY: the driver reads the descriptor and writes a handle; then it reads that and writes the requirements.
    let (is_made, is_known) = unsafe {
        if levels == 0 {
            let is_made = driver::array_create(&raw mut handle, &raw const twin) == SUCCESS;
            (is_made, is_made && driver::array_requirements(&raw mut needs, handle, gpu.device) == SUCCESS)
        } else {
            let is_made = driver::mipmap_create(&raw mut handle, &raw const twin, levels) == SUCCESS;
            (is_made, is_made && driver::mipmap_requirements(&raw mut needs, handle, gpu.device) == SUCCESS)
        }
    };
    if is_made {
        destroy_unseen(handle, levels);
    }
    let bytes = if is_known { needs.size as u64 } else { array_layout::at_most(descriptor, levels) };
    (bytes, bytes.next_multiple_of((needs.alignment as u64).max(1)))
}

/// The smallest size that the driver tells, in bytes. Small arrays share granules, and take only what they are.
const LEAST_TOLD: u64 = 64 << 10;

/// `cuArrayCreate`, `cuArray3DCreate` and `cuMipmappedArrayCreate`; `levels` is 0 for an array that is not mipmapped.
pub unsafe fn create(call: impl FnOnce() -> Status, array: *mut Handle, descriptor: *const impl Describes, levels: u32) -> Status {
    // SAFETY: the program's own descriptor, or null, which is the driver's to refuse.
    let Some(descriptor) = unsafe { descriptor.as_ref() }.map(Describes::in_3d) else { return call() };
    if array.is_null() || descriptor.flags & (ARRAY_SPARSE | ARRAY_DEFERRED) != 0 {
        return call();
    }
    with_current(call, |Current { gpu, id, .. }, call| {
        let (told, most) = requirements(gpu, &descriptor, levels);
        let bytes = if told == LEAST_TOLD { array_layout::bytes(&descriptor, levels).map_or(told, |bytes| bytes.min(told)) } else { told };
        let is_small = bytes <= small_arrays::SMALL;
        // SAFETY: read only after the driver has written it.
        let handle = || unsafe { *array };
        let record = || {
            let is_kept = ARRAYS.insert(handle() as u64, u64::from(id) << 48 | (bytes & BYTES));
            is_kept.then(|| Taken::Object(if is_small { small_arrays::add(gpu, bytes) } else { rounded_pages(bytes, GRANULE) }))
        };
        let estimate = Estimate::AtMost(rounded_pages(most, GRANULE));
        let status = acquire(gpu, Operation { estimate, call, record, undo: || destroy_unseen(handle(), levels) });
        if status == SUCCESS && is_small {
            verify(gpu, pages(most));
        }
        status
    })
}

/// `cuArrayDestroy` and `cuMipmappedArrayDestroy`
pub fn destroy(call: impl FnOnce() -> Status, array: Handle) -> Status {
    let key = array as u64;
    let mut unverified = None;
    let removed = ARRAYS.remove(key).map(|value| (value, context_table::gpu_of((value >> 48) as u8)));
    let status = changes::together(|| {
        let put_back = |value| _ = ARRAYS.insert(key, value);
        let give_back = |(value, gpu)| match gpu {
            Some(gpu) => unverified = Some((gpu, give_back(gpu, value & BYTES))),
            None => put_back(value),
        };
        changes::release(removed, call, give_back, |(value, _)| put_back(value))
    });
    if let Some((gpu, pages)) = unverified {
        verify(gpu, pages);
    }
    if status == SUCCESS {
        // Physical memory that was mapped into a sparse array.
        forget_owner(key);
    }
    status
}

#[cfg(test)]
mod tests {
    use crate::memory::objects::array_layout;
    use vgpu_cuda_abi::cuda::Array3dDescriptor;

    #[test]
    fn small_arrays_have_the_sizes_seen_on_an_h200() {
        let floats = |width, height| Array3dDescriptor { width, height, depth: 0, format: 0x20, channels: 1, flags: 0 };
        let taken = [floats(1024, 0), floats(64, 64), floats(1, 1)].map(|descriptor| array_layout::bytes(&descriptor, 0));
        assert_eq!(taken, [Some(32 << 10), Some(16 << 10), Some(512)]);
    }
}
