//! Calls of the resource manager by this library, with `libcuda`'s open files.

use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use crate::os::errno;
use vgpu_cuda_abi::resource_manager::{self as rm, ObjectHandle, RmStatus};

/// Signature of `ioctl` with one argument, as `libcuda` calls it.
type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// What `libcuda`'s relocation of `ioctl` referred to before it was redirected; null until then.
pub static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Makes a call of `ioctl` as `libcuda` would. Returns the C library's result; -1 while [`ORIGINAL`] is null.
///
/// # Safety
/// As for `ioctl`: the descriptor's driver reads and writes at `argument`.
pub unsafe fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: null, or the function that libcuda was linked to.
    match unsafe { core::mem::transmute::<*mut c_void, Option<Ioctl>>(ORIGINAL.load(Relaxed)) } {
        // SAFETY: the caller's.
        Some(original) => unsafe { original(descriptor, request, argument) },
        None => -1,
    }
}

/// Makes a control. Returns its status; `u32::MAX` if the kernel refused the call.
pub fn control<T>(descriptor: c_int, (client, object): (ObjectHandle, ObjectHandle), command: u32, parameters: &mut T) -> RmStatus {
    let size = size_of::<T>() as u32;
    let mut call =
        rm::Control { client, object, command, flags: 0, parameters: core::ptr::from_mut(parameters).cast(), size, status: u32::MAX };
    // _IOWR(type, number, size) of the kernel's ioctl.h.
    let request = 3 << 30 | (size_of::<rm::Control>() as u64) << 16 | u64::from(rm::IOCTL_TYPE) << 8 | u64::from(rm::CONTROL);
    // SAFETY: the driver reads and writes the call and its parameters, whose size it is told.
    let result = errno::preserved(|| unsafe { ioctl(descriptor, request, (&raw mut call).cast::<c_void>()) });
    if result == 0 { call.status } else { u32::MAX }
}
