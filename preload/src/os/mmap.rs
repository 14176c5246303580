//! Anonymous memory from the kernel: zeroed, and never part of the program's heap.

use core::ffi::c_void;

/// Zeroed memory, in bytes; null if there is none. It is the caller's to unmap.
pub fn map_anonymous(size: usize) -> *mut c_void {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new private mapping at an address of the kernel's choice.
    match unsafe { libc::mmap(core::ptr::null_mut(), size, protection, flags, -1, 0) } {
        libc::MAP_FAILED => core::ptr::null_mut(),
        address => address,
    }
}

/// Zeroed memory for the life of the process: what we need is little and never freed. Null if there is none.
pub fn allocate<T>() -> *mut T {
    map_anonymous(size_of::<T>()).cast()
}
