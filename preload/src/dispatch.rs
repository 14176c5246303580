//! The exported functions: each finds the driver's own function and calls its handler with it.

pub mod dlsym;
mod proc_address;

use core::ffi::{c_char, c_void};

use vgpu_cuda_abi::copies::{Copy2d, Copy2dV1, Copy3d, Copy3dV1, Operation};
use vgpu_cuda_abi::cuda::*;
use vgpu_cuda_abi::descriptors::*;
use vgpu_cuda_abi::nvml::{Memory, MemoryV2, Process, ProcessDetails, ProcessV1, UtilizationRates, UtilizationSample, Utilizations};

use crate::entry_points::library::Library;
use crate::entry_points::names::Entry;
use crate::hooks::*;
use crate::loader::{driver, symbols};
use crate::memory::objects::physical;
use crate::table::entry_points;

macro_rules! hooks {
    ($($library:ident $handler:path $([$($passed:expr),*])? => $arguments:tt $([$trace:expr])?: $($symbol:ident),+ $(| $($per_thread:ident),+)?;)*) => {
        /// Our own function for an entry.
        pub fn address(entry: usize) -> *mut c_void {
            $(
                $(if entry == Entry::$symbol as usize { return $symbol as *mut c_void; })+
                $($(if entry == Entry::$per_thread as usize { return $per_thread as *mut c_void; })+)?
            )*
            core::ptr::null_mut()
        }

        $(row!($library, $handler, [$([$($passed),*])?], $arguments, [$($symbol),+], [$($($per_thread),+)?]);)*
    };
}

macro_rules! row {
    ($library:ident, $handler:path, $passed:tt, $arguments:tt, [$($symbol:ident),*], [$($per_thread:ident),*]) => {
        $(hook!($library, $symbol, false, $handler, $passed, $arguments);)*
        $(hook!($library, $per_thread, true, $handler, $passed, $arguments);)*
    };
}

macro_rules! hook {
    ($library:ident, $symbol:ident, $own:literal, $handler:path, $passed:tt, ($($argument:ident: $type:ty),*)) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> Status {
            #[allow(dead_code)]
            const OWN: bool = $own;
            let Some(real) = symbols::real(Entry::$symbol as usize) else { return Library::$library.missing() };
            // SAFETY: the driver's function of that name has that signature; the arguments are the program's own.
            unsafe {
                let real = core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Status>(real);
                handle!($handler, $passed, real, ($($argument),*))
            }
        }
    };
}

/// Calls a row's handler: with the driver's function and all arguments, or with the program's call and what the row passes.
macro_rules! handle {
    ($handler:path, [], $real:ident, ($($argument:ident),*)) => { $handler($real, $($argument),*) };
    ($handler:path, [[$($passed:expr),*]], $real:ident, ($($argument:ident),*)) => {
        $handler(move || $real($($argument),*), $($passed),*)
    };
}

entry_points!(hooks);

/// `cuGetProcAddress`
unsafe fn get_proc_address_v1(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> Status,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { proc_address::v1(real, address, symbol, function, version, flags) }
}

/// `cuGetProcAddress_v2`
unsafe fn get_proc_address_v2(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> Status,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    found: *mut i32,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { proc_address::v2(real, address, symbol, function, version, flags, found) }
}
