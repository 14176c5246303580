//! Result type of exported functions, and helpers that access pointers passed by C callers.
//!
//! The helpers are safe functions by the contract of CUDA's API: callers of an exported function pass pointers that are null or valid for
//! the documented type.

use cudarc::driver::sys::CUresult;

/// Result of the body of an exported function.
pub type CudaResult<T = ()> = Result<T, CUresult>;

pub const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
pub const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
pub const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;
pub const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// Writes a value through an output pointer that must not be null.
pub fn put<T>(pointer: *mut T, value: T) -> CudaResult {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and by CUDA's contract the caller passes a pointer to space for a T.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes a value through an output pointer unless it is null.
pub fn put_optional<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: not null, and by CUDA's contract the caller passes a pointer to space for a T.
        unsafe { pointer.write(value) };
    }
}

/// Reads an argument through a pointer that must not be null.
pub fn get<T: Copy>(pointer: *const T) -> CudaResult<T> {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and by CUDA's contract the caller passes a pointer to a T.
    Ok(unsafe { pointer.read() })
}

/// Reads a C string.
pub fn read_str<'a>(pointer: *const std::ffi::c_char) -> CudaResult<&'a str> {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and by CUDA's contract a terminated string that lives through the call.
    unsafe { std::ffi::CStr::from_ptr(pointer) }.to_str().map_err(|_| INVALID_VALUE)
}

/// Reads an array argument of `length` elements.
pub fn read_slice<'a, T>(pointer: *const T, length: usize) -> CudaResult<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and by CUDA's contract an array of `length` elements that lives through the call.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}
