//! `cuGetProcAddress`, by which the CUDA runtime gets everything.
//!
//! The driver is asked first, and the *pointer* it returns is mapped: which `_v2` or `_ptsz` a name, version and flags mean is the
//! driver's business. Seen on driver 580: every pointer it returns is the address of an exported symbol.

use core::ffi::{c_char, c_void};

use crate::loader::{by_address, unknown_launch};
use vgpu_cuda_abi::cuda::{NOT_FOUND, SUCCESS, Status};

/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
const SYMBOL_NOT_FOUND: i32 = 1;
/// From an entry to our function for it.
type HookOf = fn(usize) -> *mut c_void;

/// Replaces the pointer that the driver gave by our function for it. False if it is not to be given out at all.
unsafe fn replace(hook_of: HookOf, symbol: *const c_char, function: *mut *mut c_void) -> bool {
    if function.is_null() {
        return true;
    }
    // SAFETY: the driver has just written there, and read the name.
    unsafe {
        if let Some(entry) = by_address::find(*function) {
            *function = hook_of(entry);
        } else if unknown_launch::is_other_launch(symbol, *function) {
            unknown_launch::say(symbol);
            *function = core::ptr::null_mut();
            return false;
        }
    }
    true
}

/// `cuGetProcAddress`
pub unsafe fn v1(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> Status,
    hook_of: HookOf,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe {
        let status = real(symbol, function, version, flags);
        if status != SUCCESS || replace(hook_of, symbol, function) { status } else { NOT_FOUND }
    }
}

/// `cuGetProcAddress_v2`
pub unsafe fn v2(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> Status,
    hook_of: HookOf,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    found: *mut i32,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe {
        let status = real(symbol, function, version, flags, found);
        if status != SUCCESS || replace(hook_of, symbol, function) {
            return status;
        }
        // Who asks for the status gets it instead of an error, as from the driver.
        match found.as_mut() {
            Some(found) => {
                *found = SYMBOL_NOT_FOUND;
                SUCCESS
            }
            None => NOT_FOUND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_char;
    use core::ffi::c_void;
    use vgpu_cuda_abi::cuda::NOT_FOUND;
    use vgpu_cuda_abi::cuda::SUCCESS;
    use vgpu_cuda_abi::cuda::Status;

    unsafe extern "C" fn newer(_: *const c_char, function: *mut *mut c_void, _: i32, _: u64, found: *mut i32) -> Status {
        // SAFETY: the test's own places.
        unsafe { *function = newer as *mut c_void };
        if !found.is_null() {
            // SAFETY: as above.
            unsafe { *found = 0 };
        }
        SUCCESS
    }

    #[test]
    fn a_launch_that_only_a_newer_driver_knows_is_not_given_out() {
        for (name, expected) in [(c"cuLaunchKernel", None), (c"cuStreamQuery", Some(newer as *mut c_void))] {
            let (mut function, mut found) = (core::ptr::null_mut(), -1);
            // SAFETY: C strings, and room for the answers.
            let statuses = unsafe {
                let told = v2(newer, |_| core::ptr::null_mut(), name.as_ptr(), &raw mut function, 15_000, 0, &raw mut found);
                (told, v2(newer, |_| core::ptr::null_mut(), name.as_ptr(), &raw mut function, 15_000, 0, core::ptr::null_mut()))
            };
            let (second, symbol) = if expected.is_some() { (SUCCESS, 0) } else { (NOT_FOUND, SYMBOL_NOT_FOUND) };
            assert_eq!((statuses, found), ((SUCCESS, second), symbol), "{name:?}");
            assert_eq!(function, expected.unwrap_or(core::ptr::null_mut()), "{name:?}");
        }
    }
}
