//! `cuGetProcAddress`, by which the CUDA runtime gets every function.
//!
//! The driver is asked first, and the *pointer* that it returns is mapped: the driver decides which `_v2` or `_ptsz` form a name, a version
//! and flags select. Seen on driver 580: every pointer it returns is the address of an exported symbol.

use core::ffi::{CStr, c_char, c_void};

use crate::loader::{by_address, withheld};
use vgpu_cuda_abi::cuda::{NOT_FOUND, SUCCESS, Status};

/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
const SYMBOL_NOT_FOUND: i32 = 1;
/// Maps an entry to the exported function for it.
type HookOf = fn(usize) -> *mut c_void;

/// Replaces the pointer that the driver returned by the exported function for it. Returns false if the function must not be handed out.
unsafe fn replace(hook_of: HookOf, symbol: *const c_char, function: *mut *mut c_void) -> bool {
    if function.is_null() {
        return true;
    }
    // SAFETY: the driver has just written the pointer, and read the name.
    unsafe {
        if let Some(entry) = by_address::find(*function) {
            *function = hook_of(entry);
        } else if withheld::is_withheld_at(symbol, *function) {
            withheld::warn(CStr::from_ptr(symbol));
            *function = core::ptr::null_mut();
            return false;
        }
    }
    true
}

/// Handles `cuGetProcAddress`.
///
/// # Safety
/// `symbol` and `function` are the program's arguments of `call`.
pub unsafe fn v1(call: impl FnOnce() -> Status, hook_of: HookOf, symbol: *const c_char, function: *mut *mut c_void) -> Status {
    let status = call();
    // SAFETY: the caller's promise; the driver has accepted them.
    if status != SUCCESS || unsafe { replace(hook_of, symbol, function) } { status } else { NOT_FOUND }
}

/// Handles `cuGetProcAddress_v2`. A program that asks for the status of the symbol gets that instead of an error, as from the driver.
///
/// # Safety
/// As [`v1`]; `found` is null or valid.
pub unsafe fn v2(
    call: impl FnOnce() -> Status,
    hook_of: HookOf,
    symbol: *const c_char,
    function: *mut *mut c_void,
    found: *mut i32,
) -> Status {
    let status = call();
    // SAFETY: the caller's promise; the driver has accepted them.
    unsafe {
        if status != SUCCESS || replace(hook_of, symbol, function) {
            return status;
        }
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

    /// Stands for a function that only a newer driver has.
    extern "C" fn newer() {}

    #[test]
    fn functions_of_a_newer_driver_are_withheld_by_name() {
        let passed = Some(newer as *mut c_void);
        for (name, expected) in [
            (c"cuLaunchKernel", None),
            (c"cuMemAlloc", None),
            (c"cuLaunchTomorrow", None),
            (c"cuStreamQuery", passed),
            (c"cuTomorrow", passed),
        ] {
            let (mut function, mut found) = (core::ptr::null_mut(), -1);
            let hook_of: HookOf = |_| core::ptr::null_mut();
            let (place, state) = (&raw mut function, &raw mut found);
            // SAFETY: C strings, and variables for the answers.
            let statuses = unsafe {
                let call = |found: *mut i32| {
                    *place = newer as *mut c_void;
                    if let Some(found) = found.as_mut() {
                        *found = 0;
                    }
                    SUCCESS
                };
                let first = v2(|| call(state), hook_of, name.as_ptr(), place, state);
                (first, v2(|| call(core::ptr::null_mut()), hook_of, name.as_ptr(), place, core::ptr::null_mut()))
            };
            let (second, symbol) = if expected.is_some() { (SUCCESS, 0) } else { (NOT_FOUND, SYMBOL_NOT_FOUND) };
            assert_eq!((statuses, found), ((SUCCESS, second), symbol), "{name:?}");
            assert_eq!(function, expected.unwrap_or(core::ptr::null_mut()), "{name:?}");
        }
    }
}
