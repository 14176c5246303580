//! The real functions of the CUDA driver and NVML.
//!
//! Nothing here takes a lock or waits: threads that load a library at once all look up every function and store the same addresses, so a
//! fork meanwhile leaves no lock held.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{by_address, dlsym, elf};
use crate::entry_points::library::Library;
use crate::entry_points::names::{self, COUNT};

/// Function that a hook calls as the driver's: the driver's own, or its recorder while the process is traced.
static REAL: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
/// The driver's own functions.
static NATIVE: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
/// Handles of the loaded libraries, by [`Library`].
static HANDLES: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// Returns the function that a hook calls as the driver's: the driver's own or its recorder; `None` if the driver lacks it.
#[inline]
pub fn real(entry: usize) -> Option<*mut c_void> {
    let address = REAL.get(entry)?.load(Acquire);
    if address.is_null() { load_for(entry) } else { Some(address) }
}

/// Returns the driver's own function of an entry; `None` before the library is loaded.
#[inline]
pub fn native(entry: usize) -> Option<*mut c_void> {
    let address = NATIVE.get(entry)?.load(Relaxed);
    (!address.is_null()).then_some(address)
}

/// Redirects calls of an entry to `function`, or with `None` back to the driver's own function. Does nothing before the library is loaded.
/// Can be called at any time.
pub fn redirect(entry: usize, function: Option<*mut c_void>) {
    if let (Some(native), Some(real)) = (native(entry), REAL.get(entry)) {
        real.store(function.unwrap_or(native), Release);
    }
}

/// Loads an entry's library and returns its function.
#[cold]
fn load_for(entry: usize) -> Option<*mut c_void> {
    let library = names::library(entry);
    if HANDLES.get(library as usize)?.load(Acquire).is_null() {
        load(library)?;
    }
    let address = REAL.get(entry)?.load(Acquire);
    (!address.is_null()).then_some(address)
}

/// Opens a library of the driver; null if that fails. It is the one that the program gets by name: an image may have another one than the
/// host's (CUDA's forward compatibility), and functions of two do not work together. Where the name is a replacement's, in which this
/// library's functions are found, it is the library that the replacement stands for.
fn dlopen(library: Library, flags: i32) -> *mut c_void {
    let named = dlsym::real_dlopen(library.soname(), flags);
    // SAFETY: a handle just opened, and a C string.
    let found = |entry| unsafe { dlsym::real_dlsym(named, names::name(entry)) };
    let is_replaced = || (0..COUNT).find(|&entry| names::library(entry) == library).is_some_and(|first| elf::is_ours(found(first)));
    if named.is_null() || is_replaced() { dlsym::real_dlopen(library.renamed(), flags) } else { named }
}

/// Returns whether the library of an entry is loaded, by the program or by this library.
pub fn is_loaded(entry: usize) -> bool {
    !dlopen(names::library(entry), libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null()
}

/// Loads a library and looks up the functions of all its entries. `None` if it cannot be opened.
fn load(library: Library) -> Option<*mut c_void> {
    let handle = dlopen(library, libc::RTLD_LAZY | libc::RTLD_LOCAL);
    if handle.is_null() {
        return None;
    }
    for (entry, real) in REAL.iter().enumerate().filter(|(entry, _)| names::library(*entry) == library) {
        // SAFETY: a handle just opened, and a C string. A search by handle begins in that library, so this library's export is not found.
        let address = unsafe { dlsym::real_dlsym(handle, names::name(entry)) };
        if !address.is_null() {
            by_address::insert(address, entry);
            if let Some(native) = NATIVE.get(entry) {
                native.store(address, Relaxed);
            }
            // Another thread may have stored it first, and may have redirected it to a recorder.
            _ = real.compare_exchange(core::ptr::null_mut(), address, Release, Relaxed);
        }
    }
    HANDLES.get(library as usize)?.store(handle, Release);
    Some(handle)
}

/// Returns a function of the CUDA driver or of NVML by name; null if its library lacks it or is not loaded.
pub fn loaded(name: &CStr) -> *mut c_void {
    let library = if name.to_bytes().starts_with(b"nvml") { Library::Nvml } else { Library::Cuda };
    if dlopen(library, libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null() { core::ptr::null_mut() } else { look_up(library, name) }
}

/// Returns a function of a library by name, intercepted or not; null if the library lacks it. Loads the library if needed.
pub fn look_up(library: Library, name: &CStr) -> *mut c_void {
    let handle = HANDLES.get(library as usize).map_or(core::ptr::null_mut(), |handle| handle.load(Acquire));
    let handle = if handle.is_null() { load(library).unwrap_or(core::ptr::null_mut()) } else { handle };
    // SAFETY: a handle that dlopen returned, and a C string.
    if handle.is_null() { handle } else { unsafe { dlsym::real_dlsym(handle, name.as_ptr()) } }
}
