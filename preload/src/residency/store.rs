//! Host memory for a process's blocks: anonymous pages, present and registered with the driver, so that copies run at the bus's speed.
//!
//! Registering takes longer than a move (H100: 16 GiB in 1.8 s to touch and 1.3 s to register, and .35 s to copy), so it is done ahead of
//! time, while the process is idle.

use core::ffi::c_void;

use crate::loader::driver;
use crate::os::mmap;
use vgpu_cuda_abi::cuda::{REGISTER_PORTABLE, SUCCESS};

/// The memory. It grows, and is given back when the process ends.
#[derive(Debug)]
pub struct Store {
    /// First byte; null while there is none.
    start: *mut c_void,
    /// Size in bytes.
    size: usize,
}

impl Store {
    /// Returns a store without memory.
    pub const fn new() -> Self {
        Self { start: core::ptr::null_mut(), size: 0 }
    }

    /// Makes room for `bytes`. A context has to be current. Returns false if there is no memory.
    pub fn prepare(&mut self, bytes: usize) -> bool {
        if bytes <= self.size {
            return true;
        }
        self.release();
        let start = mmap::map_anonymous(bytes);
        if start.is_null() {
            return false;
        }
        // SAFETY: a fresh mapping of this size, which nothing else refers to. Both are advice: the driver makes pages present if need be.
        let is_registered = unsafe {
            libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
            libc::madvise(start, bytes, libc::MADV_DONTFORK);
            driver::host_register(start, bytes, REGISTER_PORTABLE) == SUCCESS
        };
        (self.start, self.size) = (start, bytes);
        if !is_registered {
            self.unmap();
        }
        is_registered
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the address of the byte at `offset`.
    pub fn at(&self, offset: usize) -> *mut c_void {
        self.start.wrapping_byte_add(offset)
    }

    /// Gives the memory back.
    fn release(&mut self) {
        if self.size != 0 {
            // SAFETY: memory that was registered; no copy is under way.
            unsafe { driver::host_unregister(self.start) };
            self.unmap();
        }
    }

    /// Unmaps the memory.
    fn unmap(&mut self) {
        // SAFETY: the store's own mapping, with no references left.
        unsafe { libc::munmap(self.start, self.size) };
        *self = Self::new();
    }
}
