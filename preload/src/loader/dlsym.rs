//! The C library's own `dlsym`, `dlvsym` and `dlopen`.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use crate::loader::elf;

/// The C library's `dlsym`; null before [`find_real`].
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The C library's `dlvsym`; null before [`find_real`].
pub static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Signature of `dlsym`.
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Looks up a symbol with the C library's own `dlsym`.
///
/// # Safety
/// As for `dlsym`: `handle` is valid, and `name` is a C string.
pub unsafe fn real_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let mut real = REAL_DLSYM.load(Relaxed);
    if real.is_null() {
        find_real();
        real = REAL_DLSYM.load(Relaxed);
    }
    // SAFETY: null, or glibc's own dlsym, with its documented signature.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlsym>>(real).map_or(core::ptr::null_mut(), |dlsym| dlsym(handle, name)) }
}

/// Opens a library with the C library's own `dlopen`; null if that fails.
pub fn real_dlopen(name: &CStr, flags: i32) -> *mut c_void {
    /// Signature of `dlopen`.
    type Dlopen = unsafe extern "C" fn(*const c_char, i32) -> *mut c_void;
    // SAFETY: null, or glibc's own dlopen, with its documented signature.
    unsafe {
        let dlopen = core::mem::transmute::<*mut c_void, Option<Dlopen>>(elf::in_libc(c"dlopen"));
        dlopen.map_or(core::ptr::null_mut(), |dlopen| dlopen(name.as_ptr(), flags))
    }
}

/// Looks a name up where it is not, in the C library, so that `dlerror` says so.
///
/// # Safety
/// `name` is a C string.
pub unsafe fn fail(name: *const c_char) {
    // SAFETY: a handle that dlopen returned, or null, which stands for all libraries that are loaded; the caller's promise.
    unsafe { real_dlsym(real_dlopen(c"libc.so.6", libc::RTLD_LAZY | libc::RTLD_NOLOAD), name) };
}

/// Finds the C library's `dlsym` and `dlvsym`.
pub extern "C" fn find_real() {
    REAL_DLSYM.store(elf::in_libc(c"dlsym"), Relaxed);
    REAL_DLVSYM.store(elf::in_libc(c"dlvsym"), Relaxed);
}
