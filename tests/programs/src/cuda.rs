//! The CUDA driver API with Rust's errors.

use std::ffi::{CStr, c_void};

pub use cudarc::driver::sys;
use sys::{CUcontext, CUresult};

/// `cuLaunchKernel`
pub type LaunchKernel =
    unsafe extern "C" fn(sys::CUfunction, u32, u32, u32, u32, u32, u32, u32, sys::CUstream, *mut *mut c_void, *mut *mut c_void) -> CUresult;

/// Makes a code a result.
///
/// # Errors
/// Every code but success.
pub fn check(code: CUresult) -> Result<(), CUresult> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

/// A code's name, as the driver spells it.
#[must_use]
pub fn name(code: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a text that lives as long as it.
    let found = unsafe { sys::cuGetErrorName(code, &raw mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    if !found {
        return format!("code {}", code as u32);
    }
    // SAFETY: the driver gave a terminated string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Initialises the driver and makes a GPU's primary context current in this thread.
///
/// # Errors
/// What the driver says.
pub fn start(ordinal: i32) -> Result<CUcontext, CUresult> {
    let (mut device, mut context) = (0, std::ptr::null_mut());
    // SAFETY: plain calls with room for their answers.
    unsafe {
        check(sys::cuInit(0))?;
        check(sys::cuDeviceGet(&raw mut device, ordinal))?;
        check(sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        check(sys::cuCtxSetCurrent(context))?;
    }
    Ok(context)
}

/// A function under another signature than the bindings', or one that they do not have.
///
/// # Panics
/// When the driver has no such symbol.
///
/// # Safety
/// `F` must be a function pointer that fits the symbol by ABI.
#[must_use]
pub unsafe fn symbol<F: Copy>(name: &CStr) -> F {
    // SAFETY: as the caller promises.
    let found = unsafe { sys::culib().get::<F>(name.to_bytes_with_nul()) };
    *found.unwrap_or_else(|error| panic!("{error}"))
}

/// Free and total bytes of the current GPU.
///
/// # Errors
/// What the driver says.
pub fn memory() -> Result<(usize, usize), CUresult> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: room for both answers.
    check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}

/// Waits until the current context's work is done.
///
/// # Errors
/// What the driver says.
pub fn synchronize() -> Result<(), CUresult> {
    // SAFETY: no arguments.
    check(unsafe { sys::cuCtxSynchronize() })
}
