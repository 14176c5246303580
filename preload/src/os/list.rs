//! Lists in mapped memory. They use none of a program thread's stack, which may be small.

use crate::os::mmap;

/// List of up to `MOST` values, in memory that the kernel provides page by page as it is written.
#[derive(Debug)]
pub struct List<T: Copy, const MOST: usize> {
    /// The mapping; null before it is needed.
    start: *mut T,
    /// Number of values.
    count: usize,
}

impl<T: Copy, const MOST: usize> List<T, MOST> {
    /// Size of the mapping.
    const BYTES: usize = MOST * size_of::<T>();

    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { start: core::ptr::null_mut(), count: 0 }
    }

    /// Returns the mapping, zeroed, with room for `MOST` values; `None` if there is no memory.
    pub fn room(&mut self) -> Option<*mut T> {
        if self.start.is_null() {
            self.start = mmap::map_anonymous(Self::BYTES).cast();
        }
        (!self.start.is_null()).then_some(self.start)
    }

    /// Sets the number of values, after they were written to [`List::room`].
    ///
    /// # Safety
    /// `count` values were written, or all zeros is a valid `T`.
    pub unsafe fn set_count(&mut self, count: usize) {
        self.count = if self.start.is_null() { 0 } else { count.min(MOST) };
    }

    /// Adds a value. Returns false if the list is full or there is no memory.
    pub fn push(&mut self, value: T) -> bool {
        match self.room() {
            Some(start) if self.count < MOST => {
                // SAFETY: the mapping has room for one more value.
                unsafe { start.add(self.count).write(value) };
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Returns the values.
    pub fn as_slice(&self) -> &[T] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: `count` values were written, and the mapping lives as long as the list.
        unsafe { core::slice::from_raw_parts(self.start, self.count) }
    }

    /// Returns the values, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.start.is_null() {
            return &mut [];
        }
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.count) }
    }
}

impl<T: Copy, const MOST: usize> Drop for List<T, MOST> {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: the list's own mapping, of that size, with no references left.
            unsafe { libc::munmap(self.start.cast(), Self::BYTES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_accepts_no_more() {
        let mut list = List::<u16, 5000>::new();
        assert!(list.as_slice().is_empty() && list.as_mut_slice().is_empty());
        assert!((0..5000).all(|number| list.push(number)) && !list.push(7));
        assert_eq!((list.as_slice().len(), list.as_slice()[4999]), (5000, 4999));
    }
}
