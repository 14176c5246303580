//! Functions whose local memory has been checked.

use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

/// Number of places.
pub const PLACES: usize = 512;
/// Checked functions; each has one place.
pub static CHECKED: [AtomicPtr<core::ffi::c_void>; PLACES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; PLACES];

/// Forgets all, after a change of modules, contexts or the stack limit.
pub fn forget() {
    CHECKED.iter().for_each(|place| place.store(core::ptr::null_mut(), Relaxed));
}
