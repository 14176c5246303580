//! The exported functions. Each finds the driver's own function and calls its row's handler.

pub mod dlsym;
mod proc_address;

use core::ffi::{c_char, c_void};

use vgpu_cuda_abi::copies::{Copy2d, Copy2dV1, Copy3d, Copy3dV1, FabricOperation, Operation};
use vgpu_cuda_abi::cuda::*;
use vgpu_cuda_abi::descriptors::*;
use vgpu_cuda_abi::nvml::{Memory, MemoryV2, Process, ProcessDetails, ProcessV1, UtilizationRates, UtilizationSample, Utilizations};

use crate::entry_points::library::Library;
use crate::entry_points::names::Entry;
use crate::hooks::multicast::endpoint;
use crate::hooks::*;
use crate::image::{image_at, image_in_file};
use crate::loader::{driver, symbols};
use crate::residency::gate;
use crate::residency::room::{contains, may_repeat, with_room};
use crate::table::entry_points;

/// Makes the exported function of every entry.
macro_rules! hooks {
    ($($library:ident $handler:path $([$($passed:expr),*])? => $arguments:tt $([$trace:expr])?: $($symbol:ident),+ $(| $($per_thread:ident),+)?;)*) => {
        /// Returns the exported function of an entry; null for a number that is none.
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

/// Makes the exported functions of one row.
macro_rules! row {
    ($library:ident, $handler:path, $passed:tt, $arguments:tt, [$($symbol:ident),*], [$($per_thread:ident),*]) => {
        $(hook!($library, $symbol, false, $handler, $passed, $arguments);)*
        $(hook!($library, $per_thread, true, $handler, $passed, $arguments);)*
    };
}

/// Makes one exported function.
macro_rules! hook {
    ($library:ident, $symbol:ident, $per_thread:literal, $handler:path, $passed:tt, ($($argument:ident: $type:ty),*)) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> Status {
            const PER_THREAD: bool = $per_thread;
            #[allow(dead_code)]
            #[inline(always)]
            fn effective(stream: Handle) -> Handle {
                effective_stream::<PER_THREAD>(stream)
            }
            let Some(real) = symbols::real(Entry::$symbol as usize) else { return Library::$library.missing() };
            // SAFETY: the driver's function of that name has that signature; the arguments are the program's own.
            unsafe {
                let real = core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Status>(real);
                handle!($library, $symbol, $handler, $passed, real, ($($argument),*))
            }
        }
    };
}

/// Returns whether a function of the driver may touch or take device memory. Those that only wait do not: what they wait for has passed
/// the gate.
const fn needs_memory(symbol: &str) -> bool {
    !contains(symbol, "Synchronize")
}

/// Calls a row's handler: with the driver's function and all arguments, or with the program's call and what the row passes.
macro_rules! handle {
    ($library:ident, $symbol:ident, $handler:path, [], $real:ident, ($($argument:ident),*)) => { $handler($real, $($argument),*) };
    (Cuda, $symbol:ident, $handler:path, [[$($passed:expr),*]], $real:ident, ($($argument:ident),*)) => {{
        const NEEDS_MEMORY: bool = needs_memory(stringify!($symbol));
        const MAY_REPEAT: bool = NEEDS_MEMORY && may_repeat(stringify!($symbol));
        let call = move || $real($($argument),*);
        let call = move || if NEEDS_MEMORY { gate::pass(call) } else { call() };
        $handler(move || if MAY_REPEAT { with_room(None, call) } else { call() }, $($passed),*)
    }};
    (Nvml, $symbol:ident, $handler:path, [[$($passed:expr),*]], $real:ident, ($($argument:ident),*)) => {
        $handler(move || $real($($argument),*), $($passed),*)
    };
}

entry_points!(hooks);
