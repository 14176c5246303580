//! `cuMemAlloc` and related calls.

use super::common::Allocate;
use crate::cuda::sys::{self, CUresult};
use crate::cuda::{check, synchronize};

pub fn plain(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| allocate(bytes).map(|_| bytes as u64)))
}

/// Makes one plain allocation and returns its address.
pub fn allocate(bytes: usize) -> Result<u64, CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointer is valid.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
    Ok(address)
}

pub fn pitch(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let (mut address, mut pitch) = (0, 0);
        let (width, height) = (bytes.min(4096), bytes.div_ceil(4096));
        // SAFETY: both out-pointers are valid.
        check(unsafe { sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, width, height, 4) })?;
        Ok((width * height) as u64)
    }))
}

/// Managed memory, which lies on the GPU once the GPU has touched it.
pub fn managed(_ordinal: i32) -> Result<Allocate, CUresult> {
    let mut count = 0_u64;
    Ok(Box::new(move |bytes| {
        let mut address = 0;
        count += 1;
        // SAFETY: the out-pointer is valid; the fill stays within the allocation.
        unsafe {
            check(sys::cuMemAllocManaged(&raw mut address, bytes, 1))?;
            check(sys::cuMemsetD8_v2(address, 1, bytes))?;
        }
        if bytes >= 1 << 20 || count.is_multiple_of(1024) {
            synchronize()?;
        }
        Ok(bytes as u64)
    }))
}

pub fn host(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid.
        check(unsafe { sys::cuMemHostAlloc(&raw mut pointer, bytes, 0) })?;
        Ok(bytes as u64)
    }))
}
