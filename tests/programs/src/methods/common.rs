//! Types and driver objects that the methods share.

use crate::cuda::check;
use crate::cuda::sys::{self, CUresult};

/// Allocates a chunk of the given bytes and keeps it until the process ends. Returns the bytes really allocated; 0 if unknown.
pub type Allocate = Box<dyn FnMut(usize) -> Result<u64, CUresult>>;

/// Creates a stream that does not wait for the default stream.
pub(super) fn stream() -> Result<sys::CUstream, CUresult> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the out-pointer is valid.
    check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
    Ok(stream)
}

/// Returns a GPU as a memory location.
pub(super) fn location(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// Returns the properties of a memory pool on a GPU.
#[must_use]
pub fn pool_properties(ordinal: i32) -> sys::CUmemPoolProps {
    // SAFETY: all-zero is valid for this struct of numbers and null pointers.
    let mut properties = unsafe { std::mem::zeroed::<sys::CUmemPoolProps>() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}

/// Returns the properties of physical memory on a GPU.
#[must_use]
pub fn physical_properties(ordinal: i32) -> sys::CUmemAllocationProp {
    // SAFETY: all-zero is valid for this struct of numbers and null pointers.
    let mut properties = unsafe { std::mem::zeroed::<sys::CUmemAllocationProp>() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}

/// Rounds `bytes` up to the granularity of physical memory.
///
/// # Errors
/// The driver's error.
pub fn granular(bytes: usize, properties: &sys::CUmemAllocationProp) -> Result<usize, CUresult> {
    let mut granularity = 0;
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the properties and the out-pointer are valid.
    check(unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, properties, minimum) })?;
    Ok(bytes.next_multiple_of(granularity.max(1)))
}
