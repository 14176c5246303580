//! CUDA arrays of all kinds.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use super::common::{Allocate, physical_properties, stream};
use super::{linear, physical};
use crate::cuda::check;
use crate::cuda::sys::{self, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray_format, CUresult};

const FLOAT: CUarray_format = CUarray_format::CU_AD_FORMAT_FLOAT;
/// Bytes in a row.
const ROW: usize = 16384;

/// Returns a descriptor of at least `bytes` bytes of floats, in rows of at most [`ROW`] bytes.
fn square(bytes: usize) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR { Width: bytes.min(ROW) / 4, Height: bytes.div_ceil(ROW), Depth: 0, Format: FLOAT, NumChannels: 1, Flags: 0 }
}

fn size(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    (descriptor.Width * descriptor.Height * descriptor.Depth.max(1) * 4) as u64
}

pub fn two_dimensional(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let like = square(bytes);
        let descriptor = CUDA_ARRAY_DESCRIPTOR { Width: like.Width, Height: like.Height, Format: FLOAT, NumChannels: 1 };
        // SAFETY: the descriptor and the out-pointer are valid.
        check(unsafe { sys::cuArrayCreate_v2(&mut null_mut(), &raw const descriptor) })?;
        Ok(size(&like))
    }))
}

pub fn three_dimensional(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let mut descriptor = square(bytes.div_ceil(8));
        descriptor.Depth = 8;
        // SAFETY: as above.
        check(unsafe { sys::cuArray3DCreate_v2(&mut null_mut(), &raw const descriptor) })?;
        Ok(size(&descriptor))
    }))
}

/// Allocates linear memory after fragmentation: of many small arrays, which share granules, all but one in each granule are
/// destroyed.
pub fn fragmented(ordinal: i32) -> Result<Allocate, CUresult> {
    // 64 rows of 256 bytes: 128 arrays in 2 MiB.
    let descriptor = CUDA_ARRAY_DESCRIPTOR { Width: 64, Height: 64, Format: FLOAT, NumChannels: 1 };
    let mut holes = Vec::new();
    for number in 0..100 * 128 {
        let mut array = null_mut();
        // SAFETY: as above.
        check(unsafe { sys::cuArrayCreate_v2(&raw mut array, &raw const descriptor) })?;
        holes.extend((number % 128 != 0).then_some(array));
    }
    // SAFETY: each array was created here and is destroyed once.
    holes.into_iter().try_for_each(|array| check(unsafe { sys::cuArrayDestroy(array) }))?;
    linear::plain(ordinal)
}

fn create_mipmap(bytes: usize, levels: u32) -> Result<u64, CUresult> {
    let descriptor = square(bytes);
    // SAFETY: as above.
    check(unsafe { sys::cuMipmappedArrayCreate(&mut null_mut(), &raw const descriptor, levels) })?;
    Ok(size(&descriptor))
}

pub fn one_level(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| create_mipmap(bytes, 1)))
}

/// All levels: the smaller ones add to the size of the first.
pub fn all_levels(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| create_mipmap(bytes, 16)))
}

/// Arrays without memory, with physical memory mapped into them; the handles are released.
pub fn sparse(ordinal: i32) -> Result<Allocate, CUresult> {
    let stream = stream()?;
    let mut properties = physical_properties(ordinal);
    // CU_MEM_CREATE_USAGE_TILE_POOL
    properties.allocFlags.usage = 1;
    Ok(Box::new(move |bytes| {
        // Tiles are 64 KiB: 1024 floats in a row are whole tiles, and so is every multiple of 128 rows.
        let rows = bytes.div_ceil(4096).next_multiple_of(128);
        // CUDA_ARRAY3D_SPARSE
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR { Width: 1024, Height: rows, Depth: 0, Format: FLOAT, NumChannels: 1, Flags: 0x40 };
        let mut array = null_mut();
        // SAFETY: the descriptor and the out-pointer are valid.
        check(unsafe { sys::cuArray3DCreate_v2(&raw mut array, &raw const descriptor) })?;
        let (handle, got) = physical::create(rows * 4096, &properties)?;
        // SAFETY: all-zero is valid for this struct of numbers; the array and the handle live through the calls.
        unsafe {
            let mut info = MaybeUninit::<sys::CUarrayMapInfo>::zeroed();
            // The only field that must not be zero.
            (&raw mut (*info.as_mut_ptr()).memOperationType).write(sys::CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP);
            let mut info = info.assume_init();
            info.resourceType = sys::CUresourcetype::CU_RESOURCE_TYPE_ARRAY;
            info.resource.array = array;
            info.subresourceType = sys::CUarraySparseSubresourceType::CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
            info.subresource.sparseLevel.extentWidth = 1024;
            info.subresource.sparseLevel.extentHeight = rows as u32;
            info.subresource.sparseLevel.extentDepth = 1;
            info.memHandleType = sys::CUmemHandleType::CU_MEM_HANDLE_TYPE_GENERIC;
            info.memHandle.memHandle = handle;
            info.deviceBitMask = 1 << ordinal;
            check(sys::cuMemMapArrayAsync(&raw mut info, 1, stream))?;
            check(sys::cuStreamSynchronize(stream))?;
            check(sys::cuMemRelease(handle))?;
        }
        Ok(got as u64)
    }))
}
