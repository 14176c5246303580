//! Anonymous mappings: zeroed, and separate from the program's heap.

use core::ffi::c_void;

/// Maps `size` zeroed bytes, which the caller unmaps; null if there is no memory.
pub fn map_anonymous(size: usize) -> *mut c_void {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new private mapping at an address of the kernel's choice.
    match unsafe { libc::mmap(core::ptr::null_mut(), size, protection, flags, -1, 0) } {
        libc::MAP_FAILED => core::ptr::null_mut(),
        address => address,
    }
}

/// Maps zeroed memory for a `T`, which is never unmapped; null if there is no memory.
pub fn allocate<T>() -> *mut T {
    map_anonymous(size_of::<T>()).cast()
}
