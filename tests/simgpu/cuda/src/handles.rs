//! Handles that are given to the program as pointers, without ever being dereferenced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ffi::{CudaResult, INVALID_HANDLE};

/// No handle is used twice, so a stale one is recognised.
static NEXT: AtomicUsize = AtomicUsize::new(0x5555_0000_1000);

/// Objects of one kind by their handles.
pub struct Handles<T>(HashMap<usize, T>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles(HashMap::new())
    }
}

impl<T> Handles<T> {
    /// Keeps an object and gives it a handle.
    pub fn add(&mut self, object: T) -> usize {
        self.add_as(new_handle(), object)
    }

    /// Keeps an object under a handle that nothing else has now.
    pub fn add_as(&mut self, handle: usize, object: T) -> usize {
        self.0.insert(handle, object);
        handle
    }

    /// The object with this handle.
    pub fn get<P>(&self, handle: *const P) -> CudaResult<&T> {
        self.0.get(&handle.addr()).ok_or(INVALID_HANDLE)
    }

    /// The same, to change it.
    pub fn get_mut<P>(&mut self, handle: *const P) -> CudaResult<&mut T> {
        self.0.get_mut(&handle.addr()).ok_or(INVALID_HANDLE)
    }

    /// The object with this number, if it is still there.
    pub fn find(&self, handle: usize) -> Option<&T> {
        self.0.get(&handle)
    }

    /// The same, to change it.
    pub fn find_mut(&mut self, handle: usize) -> Option<&mut T> {
        self.0.get_mut(&handle)
    }

    /// Takes an object out.
    pub fn remove<P>(&mut self, handle: *const P) -> CudaResult<T> {
        self.0.remove(&handle.addr()).ok_or(INVALID_HANDLE)
    }

    /// Whether there is such an object.
    pub fn contains(&self, handle: usize) -> bool {
        self.0.contains_key(&handle)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().map(|(&handle, object)| (handle, object))
    }

    /// All of them, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    /// Removes those for which `gone` says so and returns them.
    pub fn drain_if(&mut self, mut predicate: impl FnMut(usize, &T) -> bool) -> Vec<T> {
        let handles = self.iter().filter(|(handle, object)| predicate(*handle, object)).map(|(handle, _)| handle).collect::<Vec<_>>();
        handles.into_iter().filter_map(|handle| self.0.remove(&handle)).collect()
    }
}

/// A handle that nothing else has.
pub fn new_handle() -> usize {
    NEXT.fetch_add(0x40, Ordering::Relaxed)
}

/// A handle as the pointer type that the program knows it by.
pub fn as_pointer<P>(handle: usize) -> *mut P {
    std::ptr::without_provenance_mut(handle)
}
