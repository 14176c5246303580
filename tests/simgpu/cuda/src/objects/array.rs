//! CUDA arrays.

use cudarc::driver::sys::CUDA_ARRAY3D_DESCRIPTOR;

/// Array or mipmapped array.
pub struct Array {
    pub descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    /// Device address; 0 if it has no memory of its own.
    pub address: u64,
    /// Pitch of a row in bytes.
    pub row_bytes: u64,
    /// Rows from one slice to the next.
    pub rows_per_slice: u64,
    pub bytes: u64,
    pub context: usize,
    pub levels: Vec<usize>,
    /// Handles of the physical memory mapped into it.
    pub tiles: Vec<usize>,
}
