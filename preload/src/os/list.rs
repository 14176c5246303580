//! Lists in memory of their own: they take nothing of the stack of a program's thread, which may be small.

use crate::os::mmap;

/// Up to `MOST` things, whose memory the kernel gives page by page when they are written.
#[derive(Debug)]
pub struct List<T: Copy, const MOST: usize> {
    start: *mut T,
    count: usize,
}

impl<T: Copy, const MOST: usize> List<T, MOST> {
    const BYTES: usize = MOST * size_of::<T>();

    /// An empty list.
    pub const fn new() -> Self {
        Self { start: core::ptr::null_mut(), count: 0 }
    }

    /// Where they lie, with room for `MOST` zeroed ones; `None` if there is no memory.
    pub fn room(&mut self) -> Option<*mut T> {
        if self.start.is_null() {
            self.start = mmap::map_anonymous(Self::BYTES).cast();
        }
        (!self.start.is_null()).then_some(self.start)
    }

    /// So many have been written where [`List::room`] says, or are meant to be zero.
    ///
    /// # Safety
    /// They have, or all zeros is a valid `T`.
    pub unsafe fn set_count(&mut self, count: usize) {
        self.count = if self.start.is_null() { 0 } else { count.min(MOST) };
    }

    /// Adds one. `false` if there is no room.
    pub fn push(&mut self, thing: T) -> bool {
        match self.room() {
            Some(start) if self.count < MOST => {
                // SAFETY: there is room for one more.
                unsafe { start.add(self.count).write(thing) };
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Those there are.
    pub fn as_slice(&self) -> &[T] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: so many were written, and the mapping lives as long as this does.
        unsafe { core::slice::from_raw_parts(self.start, self.count) }
    }

    /// The same, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.start.is_null() {
            return &mut [];
        }
        // SAFETY: as above, and nobody else refers to them.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.count) }
    }
}

impl<T: Copy, const MOST: usize> Drop for List<T, MOST> {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: a mapping of ours, of that size, which nobody refers to any more.
            unsafe { libc::munmap(self.start.cast(), Self::BYTES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_full_at_its_end() {
        let mut list = List::<u16, 5000>::new();
        assert!(list.as_slice().is_empty() && list.as_mut_slice().is_empty());
        assert!((0..5000).all(|number| list.push(number)) && !list.push(7));
        assert_eq!((list.as_slice().len(), list.as_slice()[4999]), (5000, 4999));
    }
}
