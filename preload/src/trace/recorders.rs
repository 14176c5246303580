//! Recorders: functions between the hooks and the driver's own functions while these are traced.

use core::ffi::{c_char, c_void};

use vgpu_cuda_abi::copies::{Copy2d, Copy2dV1, Copy3d, Copy3dV1, FabricOperation, Operation};
use vgpu_cuda_abi::cuda::*;
use vgpu_region::trace::Direction;

use super::call::*;
use super::sink;
use crate::entry_points::library::Library;
use crate::entry_points::names::Entry;
use crate::loader::symbols;
use crate::table::entry_points;

/// Returns the recorder of an entry if the entry is in this row.
macro_rules! row {
    ($entry:ident, $arguments:tt, [], $symbols:tt, $per_thread:tt) => {};
    ($entry:ident, $arguments:tt, [$trace:expr], [$($symbol:ident),*], [$($per_thread:ident),*]) => {
        $(recorder!($entry, $arguments, false, $trace, $symbol);)*
        $(recorder!($entry, $arguments, true, $trace, $per_thread);)*
    };
}

/// Returns the recorder of an entry if the entry is this symbol.
macro_rules! recorder {
    ($entry:ident, ($($argument:ident: $type:ty),*), $per_thread:literal, $trace:expr, $symbol:ident) => {
        if $entry == Entry::$symbol as usize {
            unsafe extern "C" fn recorder($($argument: $type),*) -> Status {
                const ENTRY: usize = Entry::$symbol as usize;
                #[allow(dead_code)]
                const SYMBOL: &str = stringify!($symbol);
                #[allow(dead_code)]
                fn effective(stream: Handle) -> Handle {
                    effective_stream::<$per_thread>(stream)
                }
                let Some(native) = symbols::native(ENTRY) else { return Library::Cuda.missing() };
                // SAFETY: the driver's function of that name has that signature; the arguments are the program's own.
                unsafe {
                    let native = core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Status>(native);
                    let recording = sink::begin(ENTRY, $trace);
                    let status = native($($argument),*);
                    sink::end(recording, status);
                    status
                }
            }
            return Some(recorder as *mut c_void);
        }
    };
}

/// Makes the recorders of all rows.
macro_rules! recorders {
    ($($library:ident $handler:path $([$($passed:expr),*])? => $arguments:tt $([$trace:expr])?: $($symbol:ident),+ $(| $($per_thread:ident),+)?;)*) => {
        /// Returns the recorder of an entry; `None` for an entry that is not recorded.
        pub fn recorder(entry: usize) -> Option<*mut c_void> {
            $(row!(entry, $arguments, [$($trace)?], [$($symbol),+], [$($($per_thread),+)?]);)*
            None
        }
    };
}

entry_points!(recorders);
