//! Granules, the unit of device memory.

use crate::ffi::{CudaResult, OUT_OF_MEMORY};

/// Unit of device memory: allocations of at least this size take whole granules, smaller ones share granules.
pub const GRANULE: u64 = 2 << 20;

/// Rounds `size` up to whole granules. Returns bytes.
pub fn granules(size: u64) -> CudaResult<u64> {
    size.checked_next_multiple_of(GRANULE).ok_or(OUT_OF_MEMORY)
}
