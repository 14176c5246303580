//! How functions answer, and how they reach through the pointers that C callers give.
//!
//! The helpers here are safe to call in this crate's own sense: each exported function promises its callers what CUDA does, that a
//! pointer is null or good for the documented type.

use cudarc::driver::sys::CUresult;

/// What an exported function's body returns.
pub type CudaResult<T = ()> = Result<T, CUresult>;

pub const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
pub const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
pub const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// Writes an answer through a pointer that must not be null.
pub fn put<T>(pointer: *mut T, value: T) -> CudaResult {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the C caller promises it points to room for a T.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes an answer through a pointer that may be null.
pub fn put_optional<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: not null, and the C caller promises it points to room for a T.
        unsafe { pointer.write(value) };
    }
}

/// Reads an argument behind a pointer that must not be null.
pub fn get<T: Copy>(pointer: *const T) -> CudaResult<T> {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the C caller promises it points to a T.
    Ok(unsafe { pointer.read() })
}

/// Reads a C string.
pub fn read_str<'a>(pointer: *const std::ffi::c_char) -> CudaResult<&'a str> {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the C caller promises a terminated string that lives through the call.
    unsafe { std::ffi::CStr::from_ptr(pointer) }.to_str().map_err(|_| INVALID_VALUE)
}

/// Reads an array argument.
pub fn read_slice<'a, T>(pointer: *const T, length: usize) -> CudaResult<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the C caller promises `length` elements that live through the call.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}
