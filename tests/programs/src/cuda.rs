//! The CUDA driver API with `Result`s.

use std::ffi::{CStr, c_void};

pub use cudarc::driver::sys;
use sys::{CUcontext, CUresult};

/// Signature of `cuLaunchKernel`.
pub type LaunchKernel =
    unsafe extern "C" fn(sys::CUfunction, u32, u32, u32, u32, u32, u32, u32, sys::CUstream, *mut *mut c_void, *mut *mut c_void) -> CUresult;

/// Turns a status code into a `Result`.
///
/// # Errors
/// Every code but `CUDA_SUCCESS`.
pub fn check(code: CUresult) -> Result<(), CUresult> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

/// Returns the driver's name of a code.
#[must_use]
pub fn name(code: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a static string.
    let found = unsafe { sys::cuGetErrorName(code, &raw mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    if !found {
        return format!("code {}", code as u32);
    }
    // SAFETY: the driver returned a NUL-terminated string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Initialises the driver and makes a GPU's primary context current in this thread.
///
/// # Errors
/// The driver's error.
pub fn start(ordinal: i32) -> Result<CUcontext, CUresult> {
    let (mut device, mut context) = (0, std::ptr::null_mut());
    // SAFETY: the out-pointers are valid.
    unsafe {
        check(sys::cuInit(0))?;
        check(sys::cuDeviceGet(&raw mut device, ordinal))?;
        check(sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        check(sys::cuCtxSetCurrent(context))?;
    }
    Ok(context)
}

/// Looks up a function by name, for a signature that the bindings do not have.
///
/// # Panics
/// If the driver has no such symbol.
///
/// # Safety
/// `F` must be a function pointer type that matches the symbol's ABI.
#[must_use]
pub unsafe fn symbol<F: Copy>(name: &CStr) -> F {
    // SAFETY: the caller guarantees the type.
    let found = unsafe { sys::culib().get::<F>(name.to_bytes_with_nul()) };
    *found.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns whether the driver has a function, which older ones may lack.
#[must_use]
pub fn has(name: &CStr) -> bool {
    // SAFETY: only the symbol's address is looked up.
    unsafe { sys::culib().get::<*mut c_void>(name.to_bytes_with_nul()) }.is_ok()
}

/// Checks that the driver has a function.
///
/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` if it has none.
pub fn require(name: &CStr) -> Result<(), CUresult> {
    if has(name) { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) }
}

/// Returns the free and total bytes of the current GPU.
///
/// # Errors
/// The driver's error.
pub fn memory() -> Result<(usize, usize), CUresult> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both out-pointers are valid.
    check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}

/// Waits until all work of the current context is done.
///
/// # Errors
/// The driver's error.
pub fn synchronize() -> Result<(), CUresult> {
    // SAFETY: the call takes no arguments.
    check(unsafe { sys::cuCtxSynchronize() })
}
