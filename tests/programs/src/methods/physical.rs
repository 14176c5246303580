//! Virtual memory management: physical memory, and mappings of it.

use super::common::{Allocate, granular, physical_properties};
use crate::cuda::check;
use crate::cuda::sys::{self, CUmemAllocationProp, CUresult};
use crate::mapping::Mapping;

/// Creates physical memory of `bytes` bytes, rounded up to the granularity. Returns the handle and the rounded size.
pub fn create(bytes: usize, properties: &CUmemAllocationProp) -> Result<(u64, usize), CUresult> {
    let bytes = granular(bytes, properties)?;
    let mut handle = 0;
    // SAFETY: the properties and the out-pointer are valid.
    check(unsafe { sys::cuMemCreate(&raw mut handle, bytes, properties, 0) })?;
    Ok((handle, bytes))
}

pub fn unmapped(ordinal: i32) -> Result<Allocate, CUresult> {
    let properties = physical_properties(ordinal);
    Ok(Box::new(move |bytes| create(bytes, &properties).map(|(_, bytes)| bytes as u64)))
}

/// Physical memory that the GPU may use, with a handle, as PyTorch's expandable segments have it.
pub fn expandable(ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(move |bytes| Ok(Mapping::make(ordinal, bytes)?.bytes as u64)))
}

/// Physical memory that only its mapping keeps.
pub fn mapped(ordinal: i32) -> Result<Allocate, CUresult> {
    let properties = physical_properties(ordinal);
    Ok(Box::new(move |bytes| {
        let (handle, bytes) = create(bytes, &properties)?;
        let mut address = 0;
        // SAFETY: the out-pointer is valid; the handle is released once.
        unsafe {
            check(sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0))?;
            check(sys::cuMemMap(address, bytes, 0, handle, 0))?;
            check(sys::cuMemRelease(handle))?;
        }
        Ok(bytes as u64)
    }))
}
