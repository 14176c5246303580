//! The device memory that images of device code take, read before the driver loads them.

use core::ffi::{c_char, c_void};

use crate::loader::driver;
use crate::session;
use vgpu_cuda_abi::cuda::{ATTRIBUTE_CAPABILITY_MAJOR, ATTRIBUTE_CAPABILITY_MINOR, SUCCESS};
pub use vgpu_device_code::Globals;

/// Calls `read`, which takes time, under a memory limit; otherwise returns [`Globals::NONE`].
pub fn if_limited(read: impl FnOnce() -> Globals) -> Globals {
    if session::is_memory_limited() { read() } else { Globals::NONE }
}

/// Reads an image. The result is the largest for any GPU of the process.
///
/// # Safety
/// As for [`vgpu_device_code::at`].
pub unsafe fn image_at(image: *const c_void) -> Globals {
    // SAFETY: the caller's promise.
    unsafe { vgpu_device_code::at(image, capabilities) }
}

/// Reads an image in a file, as [`image_at`].
///
/// # Safety
/// `path` is null or a C string.
pub unsafe fn image_in_file(path: *const c_char) -> Globals {
    // SAFETY: the caller's promise.
    unsafe { vgpu_device_code::in_file(path, capabilities) }
}

/// Compute capabilities of GPUs, times ten.
struct Capabilities {
    /// One for each GPU of the process.
    list: [u32; vgpu_region::MAX_GPUS],
    /// Number of GPUs. 0 if the capability of one is unknown.
    count: usize,
}

impl AsRef<[u32]> for Capabilities {
    fn as_ref(&self) -> &[u32] {
        self.list.get(..self.count).unwrap_or_default()
    }
}

/// Returns the compute capabilities of the process's GPUs.
fn capabilities() -> Capabilities {
    let gpus = session::ready().map_or(&[][..], |session| session.gpus());
    let mut found = Capabilities { list: Default::default(), count: 0 };
    for (place, gpu) in found.list.iter_mut().zip(gpus) {
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the driver writes one integer.
            (unsafe { driver::device_attribute(&raw mut value, attribute, gpu.device) } == SUCCESS).then_some(value as u32)
        };
        match (attribute(ATTRIBUTE_CAPABILITY_MAJOR), attribute(ATTRIBUTE_CAPABILITY_MINOR)) {
            (Some(major), Some(minor)) => *place = major * 10 + minor,
            _ => return found,
        }
    }
    found.count = gpus.len().min(found.list.len());
    found
}
