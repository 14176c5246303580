//! What a newer driver may offer that puts work on the GPU and that is not in the table: nobody would measure it, so it is not given out.

use core::ffi::{CStr, c_char, c_void};

use vgpu_region::limits::LogLevel;

use super::by_address;
use crate::entry_points::names;
use crate::os::log;
use crate::os::log::Seldom;

/// How the names of functions begin that do.
const LAUNCHES: [&[u8]; 2] = [b"cuLaunch", b"cuGraphLaunch"];
static SAID: Seldom = Seldom::new();

/// Whether this is the name of a function that launches something and is not ours.
///
/// # Safety
/// A C string.
pub unsafe fn is_launch(name: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { begins(name) && names::find(name).is_none() }
}

/// Whether a function that launches something was asked for by this name, and the driver's answer is none that the table knows.
///
/// # Safety
/// Null or a C string.
pub unsafe fn is_other_launch(name: *const c_char, answer: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    !name.is_null() && !answer.is_null() && unsafe { begins(name) } && by_address::find(answer).is_none()
}

unsafe fn begins(name: *const c_char) -> bool {
    // SAFETY: a C string is compared up to its end at most.
    LAUNCHES.iter().any(|start| unsafe { libc::strncmp(name, start.as_ptr().cast(), start.len()) } == 0)
}

/// Says that it is not given out.
///
/// # Safety
/// A C string.
pub unsafe fn say(name: *const c_char) {
    if SAID.now() {
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?");
        log::line(LogLevel::Error, format_args!("this driver's {name} is newer than vgpu, which could not measure it: it is kept back"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_are_not_in_the_table_are_told_from_all_else() {
        for (name, unknown) in [
            (c"cuLaunchKernel", false),
            (c"cuLaunchKernelEx_ptsz", false),
            (c"cuGraphLaunch", false),
            (c"cuLaunchKernelEx_v2", true),
            (c"cuGraphLaunch_v2_ptsz", true),
            (c"cuMemAlloc_v3", false),
            (c"culaunch", false),
            (c"", false),
        ] {
            // SAFETY: C strings.
            assert_eq!(unsafe { is_launch(name.as_ptr()) }, unknown, "{name:?}");
        }
    }
}
