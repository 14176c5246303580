//! Launch functions of newer drivers that are not in the table. Their work could not be measured, so they are withheld from programs.

use core::ffi::{CStr, c_char, c_void};

use vgpu_region::limits::LogLevel;

use super::by_address;
use crate::entry_points::names;
use crate::os::log;
use crate::os::log::Throttle;

/// Prefixes of the names of launch functions.
const LAUNCHES: [&[u8]; 2] = [b"cuLaunch", b"cuGraphLaunch"];
/// Limits the warnings.
static WARNED: Throttle = Throttle::new();

/// Returns whether a name is that of a launch function that is not in the table.
///
/// # Safety
/// `name` is a C string.
pub unsafe fn is_launch(name: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { begins(name) && names::find(name).is_none() }
}

/// Returns whether a name is that of a launch function and `address`, the driver's answer, is not in the table.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn is_other_launch(name: *const c_char, address: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    !name.is_null() && !address.is_null() && unsafe { begins(name) } && by_address::find(address).is_none()
}

/// Returns whether a name has one of the prefixes.
unsafe fn begins(name: *const c_char) -> bool {
    // SAFETY: a C string is compared up to its end at most.
    LAUNCHES.iter().any(|start| unsafe { libc::strncmp(name, start.as_ptr().cast(), start.len()) } == 0)
}

/// Logs that a function is withheld.
///
/// # Safety
/// `name` is a C string.
pub unsafe fn warn(name: *const c_char) {
    if WARNED.allow() {
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?");
        log::line(
            LogLevel::Error,
            format_args!("withheld {name}: this driver's function is newer than vgpu, so its work could not be measured"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_launches_outside_the_table_are_unknown() {
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
