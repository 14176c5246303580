//! Host memory for a process's blocks: anonymous pages, present and registered with the driver, so that copies run at the bus's speed.
//!
//! This takes longer than a move (H200: 10 GiB in 1.6 s to touch and .2 s to register, and .2 s to copy), so it is done ahead of time, and in
//! steps. The driver holds a lock while it registers, and makes pages present that are not: a training loop beside that made no step in
//! 1.6 s. Pages are therefore touched before, which leaves the loop four fifths of its steps (`tests/gpu/results/beyond.md`).

use core::ffi::c_void;

use crate::loader::driver;
use crate::os::mmap;
use vgpu_cuda_abi::cuda::{REGISTER_PORTABLE, SUCCESS};

/// Bytes that are registered at once: 1.3 ms on an H200, for which a call of the program waits.
const STEP: usize = 64 << 20;

/// The memory. Its first `size` bytes are registered, each [`STEP`] alone.
#[derive(Debug)]
pub struct Store {
    /// First byte; null while there is none.
    start: *mut c_void,
    /// Bytes of addresses.
    mapped: usize,
    /// Bytes that are registered.
    size: usize,
}

/// What became of a [`Store::grow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// It is large enough.
    Enough,
    /// It was stopped before it was.
    Stopped,
    /// There is no memory.
    NoMemory,
}

impl Store {
    /// Returns a store without memory.
    pub const fn new() -> Self {
        Self { start: core::ptr::null_mut(), mapped: 0, size: 0 }
    }

    /// Makes it at least `bytes` long, in steps, while `may_go_on`. `most` is what it may be asked for later, in bytes: addresses are kept for
    /// as much. A context has to be current.
    pub fn grow(&mut self, bytes: usize, most: usize, may_go_on: impl Fn() -> bool) -> Grown {
        let Some(wanted) = bytes.checked_next_multiple_of(STEP) else { return Grown::NoMemory };
        if wanted > self.mapped && !self.map(wanted.max(most)) {
            return Grown::NoMemory;
        }
        while self.size < wanted {
            if !may_go_on() {
                return Grown::Stopped;
            }
            // SAFETY: a part of the mapping, which nothing else refers to.
            unsafe { mmap::touch(self.at(self.size), STEP) };
            // SAFETY: as above.
            if unsafe { driver::host_register(self.at(self.size), STEP, REGISTER_PORTABLE) } != SUCCESS {
                self.drop_pages(self.size);
                return Grown::NoMemory;
            }
            self.size += STEP;
        }
        Grown::Enough
    }

    /// Gives back the steps that `bytes` do not need, while `may_go_on`. A context has to be current.
    pub fn shrink(&mut self, bytes: usize, may_go_on: impl Fn() -> bool) {
        while self.size >= bytes.saturating_add(STEP) && may_go_on() {
            self.give_back_a_step();
        }
    }

    /// Returns the registered bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the parts of the `bytes` bytes from `offset` on that were registered at once, with their lengths. Whether the driver copies
    /// across two registrations is documented nowhere.
    pub fn parts(&self, offset: usize, bytes: usize) -> impl Iterator<Item = (*mut c_void, usize)> {
        let (mut from, end) = (offset, offset + bytes);
        core::iter::from_fn(move || {
            let to = end.min((from / STEP + 1) * STEP);
            let part = (to > from).then(|| (self.at(from), to - from));
            from = to;
            part
        })
    }

    /// Returns the address of the byte at `offset`.
    fn at(&self, offset: usize) -> *mut c_void {
        self.start.wrapping_byte_add(offset)
    }

    /// Maps `bytes` bytes of addresses, and gives back what there was.
    fn map(&mut self, bytes: usize) -> bool {
        while self.size != 0 {
            self.give_back_a_step();
        }
        if self.mapped != 0 {
            // SAFETY: the store's own mapping, with no references left.
            unsafe { libc::munmap(self.start, self.mapped) };
            *self = Self::new();
        }
        let start = mmap::map_anonymous(bytes);
        if !start.is_null() {
            // SAFETY: advice on a fresh mapping of this size.
            unsafe {
                libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
                libc::madvise(start, bytes, libc::MADV_DONTFORK);
            }
            (self.start, self.mapped) = (start, bytes);
        }
        !start.is_null()
    }

    /// Gives the last step back to the system.
    fn give_back_a_step(&mut self) {
        self.size -= STEP;
        // SAFETY: a part that was registered at once; no copy is under way.
        unsafe { driver::host_unregister(self.at(self.size)) };
        self.drop_pages(self.size);
    }

    /// Gives the pages of the step at `offset` back, which is not registered.
    fn drop_pages(&self, offset: usize) {
        // SAFETY: a part of the mapping, which nothing refers to.
        unsafe { libc::madvise(self.at(offset), STEP, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_crosses_a_step() {
        let store = Store { start: core::ptr::without_provenance_mut(STEP), mapped: 4 * STEP, size: 4 * STEP };
        let parts = |offset, bytes| store.parts(offset, bytes).map(|(at, bytes)| (at.addr() - STEP, bytes)).collect::<Vec<_>>();
        assert_eq!(parts(0, STEP), [(0, STEP)]);
        assert_eq!(parts(5, 10), [(5, 10)]);
        assert_eq!(parts(STEP - 1, 2), [(STEP - 1, 1), (STEP, 1)]);
        assert_eq!(parts(STEP / 2, 2 * STEP), [(STEP / 2, STEP / 2), (STEP, STEP), (2 * STEP, STEP / 2)]);
        assert_eq!(parts(7, 0), []);
    }
}
