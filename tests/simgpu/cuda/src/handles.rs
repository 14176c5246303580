//! Handles of objects. The program sees them as pointers; they are never dereferenced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::CUstream;

use crate::ffi::{CudaResult, INVALID_HANDLE};

/// Handle of the per-thread default stream. Handles 0 and 1 are the legacy stream.
pub const PER_THREAD: usize = 2;

/// Maps a null stream to the per-thread default stream, for the `_ptsz` variants.
pub fn per_thread_default(stream: CUstream) -> CUstream {
    if stream.is_null() { as_pointer(PER_THREAD) } else { stream }
}

/// Next handle. Handles are not reused, so stale handles are detected.
static NEXT: AtomicUsize = AtomicUsize::new(0x5555_0000_1000);

/// Objects of one type by handle.
pub struct Handles<T>(HashMap<usize, T>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles(HashMap::new())
    }
}

impl<T> Handles<T> {
    /// Adds an object under a new handle and returns that.
    pub fn add(&mut self, object: T) -> usize {
        self.add_as(new_handle(), object)
    }

    /// Adds an object under a handle that is not in use.
    pub fn add_as(&mut self, handle: usize, object: T) -> usize {
        self.0.insert(handle, object);
        handle
    }

    /// Returns the object with this handle.
    pub fn get<P>(&self, handle: *const P) -> CudaResult<&T> {
        self.0.get(&handle.addr()).ok_or(INVALID_HANDLE)
    }

    /// Returns the object with this handle, mutably.
    pub fn get_mut<P>(&mut self, handle: *const P) -> CudaResult<&mut T> {
        self.0.get_mut(&handle.addr()).ok_or(INVALID_HANDLE)
    }

    /// Returns the object with this handle if it exists.
    pub fn find(&self, handle: usize) -> Option<&T> {
        self.0.get(&handle)
    }

    /// Returns the object with this handle, mutably, if it exists.
    pub fn find_mut(&mut self, handle: usize) -> Option<&mut T> {
        self.0.get_mut(&handle)
    }

    /// Removes an object and returns it.
    pub fn remove<P>(&mut self, handle: *const P) -> CudaResult<T> {
        self.0.remove(&handle.addr()).ok_or(INVALID_HANDLE)
    }

    /// Returns whether an object has this handle.
    pub fn contains(&self, handle: usize) -> bool {
        self.0.contains_key(&handle)
    }

    /// Iterates over all objects.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().map(|(&handle, object)| (handle, object))
    }

    /// Iterates over all objects, mutably.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    /// Removes and returns the objects for which `predicate` returns true.
    pub fn drain_if(&mut self, mut predicate: impl FnMut(usize, &T) -> bool) -> Vec<T> {
        let handles = self.iter().filter(|(handle, object)| predicate(*handle, object)).map(|(handle, _)| handle).collect::<Vec<_>>();
        handles.into_iter().filter_map(|handle| self.0.remove(&handle)).collect()
    }
}

/// Returns a new, unique handle.
pub fn new_handle() -> usize {
    NEXT.fetch_add(0x40, Ordering::Relaxed)
}

/// Converts a handle to the pointer type that the program uses for it.
pub fn as_pointer<P>(handle: usize) -> *mut P {
    std::ptr::without_provenance_mut(handle)
}
