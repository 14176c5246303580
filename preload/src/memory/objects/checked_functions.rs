//! Functions whose local memory has been looked at.

use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

pub const PLACES: usize = 512;
/// Functions that were looked at; each has one place.
pub static CHECKED: [AtomicPtr<core::ffi::c_void>; PLACES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; PLACES];

/// Modules, contexts or the stack limit have changed: look again.
pub fn forget() {
    CHECKED.iter().for_each(|place| place.store(core::ptr::null_mut(), Relaxed));
}
