//! `cuGetProcAddress`, by which the CUDA runtime gets everything.
//!
//! The driver is asked first, and the *pointer* it returns is mapped: which `_v2` or `_ptsz` a name, version and flags mean is the
//! driver's business. Seen on driver 580: every pointer it returns is the address of an exported symbol.

use core::ffi::{c_char, c_void};

use crate::cuda::{SUCCESS, Status};
use crate::{driver, table};

/// Replaces the pointer that the driver gave by our function for it.
unsafe fn replace(function: *mut *mut c_void) {
    if function.is_null() {
        return;
    }
    // SAFETY: the driver has just written there.
    unsafe {
        if let Some(entry) = driver::by_pointer::find(*function) {
            *function = table::address(entry);
        }
    }
}

/// `cuGetProcAddress`
pub unsafe fn v1(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> Status,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe {
        let status = real(symbol, function, version, flags);
        if status == SUCCESS {
            replace(function);
        }
        status
    }
}

/// `cuGetProcAddress_v2`
pub unsafe fn v2(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> Status,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    found: *mut i32,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe {
        let status = real(symbol, function, version, flags, found);
        if status == SUCCESS {
            replace(function);
        }
        status
    }
}
