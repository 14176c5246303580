//! Initialization, shutdown, versions and error texts.

use std::ffi::{CStr, c_char};

use simgpu_device::face;

use crate::api::{machine, put, put_text, start, stop};

api! {
    fn nvmlInit | nvmlInit_v2 () { start() }
    fn nvmlInitWithFlags(_flags: u32) { start() }
    fn nvmlShutdown() { stop() }

    fn nvmlSystemGetDriverVersion(out: *mut c_char, room: u32) {
        machine()?;
        put_text(out, room, face::driver_version())
    }

    fn nvmlSystemGetNVMLVersion(out: *mut c_char, room: u32) {
        machine()?;
        put_text(out, room, &format!("{}.{}", face::cuda_version() / 1000, face::driver_version()))
    }

    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2 (out: *mut i32) {
        put(out, face::cuda_version())
    }
}

/// Returns the text of a return code.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    let text: &CStr = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        13 => c"Function Not Found",
        25 => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
