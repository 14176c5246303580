//! The C library's own `dlsym` and `dlvsym`.

use core::ffi::{c_char, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use crate::loader::elf;

/// The C library's `dlsym`; null before [`find_real`].
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The C library's `dlvsym`; null before [`find_real`].
pub static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Looks up a symbol as the program would without us.
///
/// # Safety
/// As for `dlsym`: a valid handle, and a C string.
pub unsafe fn real_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let mut real = REAL_DLSYM.load(Relaxed);
    if real.is_null() {
        find_real();
        real = REAL_DLSYM.load(Relaxed);
    }
    // SAFETY: glibc's own dlsym, which is always there in a process that came this far.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlsym>>(real).map_or(core::ptr::null_mut(), |dlsym| dlsym(handle, name)) }
}

/// Finds what `dlsym` and `dlvsym` jump to.
pub extern "C" fn find_real() {
    REAL_DLSYM.store(elf::in_libc(c"dlsym"), Relaxed);
    REAL_DLVSYM.store(elf::in_libc(c"dlvsym"), Relaxed);
}
