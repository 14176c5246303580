//! Arrays by the functions of before CUDA 4, whose descriptors have 32-bit extents.

use crate::hooks::arrays::create_with;
use vgpu_cuda_abi::cuda::{Array3dDescriptor, Handle, Status};
use vgpu_cuda_abi::descriptors::{Descriptor, Descriptor3d};

/// `cuArrayCreate`
pub unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, *const Descriptor) -> Status,
    array: *mut Handle,
    descriptor: *const Descriptor,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        let Some(&Descriptor { width, height, format, channels }) = descriptor.as_ref() else { return real(array, descriptor) };
        let known = Array3dDescriptor { width: width as usize, height: height as usize, depth: 0, format, channels, flags: 0 };
        create_with(array, &known, 0, || real(array, descriptor))
    }
}

/// `cuArray3DCreate`
pub unsafe fn create_3d(
    real: unsafe extern "C" fn(*mut Handle, *const Descriptor3d) -> Status,
    array: *mut Handle,
    descriptor: *const Descriptor3d,
) -> Status {
    // SAFETY: as above.
    unsafe {
        let Some(&Descriptor3d { width, height, depth, format, channels, flags }) = descriptor.as_ref() else {
            return real(array, descriptor);
        };
        let [width, height, depth] = [width, height, depth].map(|extent| extent as usize);
        create_with(array, &Array3dDescriptor { width, height, depth, format, channels, flags }, 0, || real(array, descriptor))
    }
}
