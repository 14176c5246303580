//! The real CUDA driver and NVML.
//!
//! Nothing here takes a lock or waits: two threads that come first both look everything up and store the same answers, so a fork
//! in the middle leaves nothing behind.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{by_address, dlsym, elf};
use crate::entry_points::library::Library;
use crate::entry_points::names::{self, COUNT};

static REAL: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
/// The same, also while something else stands in for it in [`REAL`].
static NATIVE: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
static HANDLES: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// The real function behind a table entry, or what records its calls; `None` if the driver has none.
#[inline]
pub fn real(entry: usize) -> Option<*mut c_void> {
    let address = REAL.get(entry)?.load(Acquire);
    if address.is_null() { load_for(entry) } else { Some(address) }
}

/// The driver's own function behind a table entry, once it was loaded.
#[inline]
pub fn native(entry: usize) -> Option<*mut c_void> {
    let address = NATIVE.get(entry)?.load(Relaxed);
    (!address.is_null()).then_some(address)
}

/// Redirects calls of `entry` to `function` instead of the driver's own function, or back to it with `None`. Does nothing before the entry
/// was loaded. Can be called at any time.
pub fn redirect(entry: usize, function: Option<*mut c_void>) {
    if let (Some(native), Some(real)) = (native(entry), REAL.get(entry)) {
        real.store(function.unwrap_or(native), Release);
    }
}

#[cold]
fn load_for(entry: usize) -> Option<*mut c_void> {
    let library = names::library(entry);
    if HANDLES.get(library as usize)?.load(Acquire).is_null() {
        load(library)?;
    }
    let address = REAL.get(entry)?.load(Acquire);
    (!address.is_null()).then_some(address)
}

fn dlopen(library: Library, flags: i32) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const core::ffi::c_char, i32) -> *mut c_void;
    // SAFETY: glibc's own dlopen, by its documented signature.
    unsafe {
        let dlopen = core::mem::transmute::<*mut c_void, Option<Dlopen>>(elf::in_libc(c"dlopen"));
        // Where a front has taken the driver's name, the driver itself lies beside us.
        let beside = library.beside();
        let name = if libc::access(beside.as_ptr(), libc::R_OK) == 0 { beside } else { library.soname() };
        dlopen.map_or(core::ptr::null_mut(), |dlopen| dlopen(name.as_ptr(), flags))
    }
}

/// Whether the library behind an entry is in the process already, or was loaded by us.
pub fn is_loaded(entry: usize) -> bool {
    !dlopen(names::library(entry), libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null()
}

fn load(library: Library) -> Option<*mut c_void> {
    let handle = dlopen(library, libc::RTLD_LAZY | libc::RTLD_LOCAL);
    if handle.is_null() {
        return None;
    }
    for (entry, real) in REAL.iter().enumerate().filter(|(entry, _)| names::library(*entry) == library) {
        // SAFETY: a handle just opened, and a C string. Searching by handle begins in that library, so our own export is not found.
        let address = unsafe { dlsym::real_dlsym(handle, names::name(entry)) };
        if !address.is_null() {
            by_address::insert(address, entry);
            if let Some(native) = NATIVE.get(entry) {
                native.store(address, Relaxed);
            }
            // Another thread may have come first, and what records calls may be there by now.
            _ = real.compare_exchange(core::ptr::null_mut(), address, Release, Relaxed);
        }
    }
    HANDLES.get(library as usize)?.store(handle, Release);
    Some(handle)
}

/// A function of CUDA's driver by name, if that is in the process already; else null.
pub fn loaded(name: &CStr) -> *mut c_void {
    if dlopen(Library::Cuda, libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null() { core::ptr::null_mut() } else { look_up(Library::Cuda, name) }
}

/// A function of the driver by name, whether we stand in for it or not.
pub fn look_up(library: Library, name: &CStr) -> *mut c_void {
    let handle = HANDLES.get(library as usize).map_or(core::ptr::null_mut(), |handle| handle.load(Acquire));
    let handle = if handle.is_null() { load(library).unwrap_or(core::ptr::null_mut()) } else { handle };
    // SAFETY: a handle of ours and a C string.
    if handle.is_null() { handle } else { unsafe { dlsym::real_dlsym(handle, name.as_ptr()) } }
}
