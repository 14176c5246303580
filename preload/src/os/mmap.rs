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

/// Smallest size of a page, in bytes.
const PAGE: usize = 4096;

/// Makes fresh pages present: writes a zero to each one.
///
/// # Safety
/// `size` bytes of a mapping from [`map_anonymous`], which nothing refers to.
pub unsafe fn touch(address: *mut c_void, size: usize) {
    for offset in (0..size).step_by(PAGE) {
        // SAFETY: a byte of the mapping, by the caller's promise.
        unsafe { address.cast::<u8>().wrapping_add(offset).write_volatile(0) };
    }
}

/// Maps zeroed memory for a `T`, which is never unmapped; null if there is no memory.
pub fn allocate<T>() -> *mut T {
    map_anonymous(size_of::<T>()).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_present() {
        // SAFETY: the call takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let size = 8 * page;
        let address = map_anonymous(size);
        let present = || {
            let mut pages = [0; 8];
            // SAFETY: the mapping, and a byte for each of its pages.
            assert_eq!(unsafe { libc::mincore(address, size, pages.as_mut_ptr()) }, 0);
            pages.iter().filter(|page| **page & 1 != 0).count()
        };
        assert_eq!(present(), 0);
        // SAFETY: the test's own mapping.
        unsafe { touch(address, size) };
        assert_eq!(present(), 8);
        // SAFETY: as above; nothing refers to it any more.
        unsafe { libc::munmap(address, size) };
    }
}
