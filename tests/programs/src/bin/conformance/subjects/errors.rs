//! Names and texts of error codes.

use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

use vgpu_test_programs::cuda::sys::{self, CUresult};

use super::Report;

fn shown(code: CUresult, text: *const c_char) -> String {
    if text.is_null() {
        return format!("{} null", code as u32);
    }
    // SAFETY: the driver gave a terminated string that lives as long as it.
    format!("{} {}", code as u32, unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

pub fn ask(report: &mut Report) {
    let codes = [
        CUresult::CUDA_SUCCESS,
        CUresult::CUDA_ERROR_INVALID_VALUE,
        CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        CUresult::CUDA_ERROR_NOT_INITIALIZED,
        CUresult::CUDA_ERROR_DEINITIALIZED,
        CUresult::CUDA_ERROR_NO_DEVICE,
        CUresult::CUDA_ERROR_INVALID_DEVICE,
        CUresult::CUDA_ERROR_INVALID_IMAGE,
        CUresult::CUDA_ERROR_INVALID_CONTEXT,
        CUresult::CUDA_ERROR_INVALID_PTX,
        CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT,
        CUresult::CUDA_ERROR_FILE_NOT_FOUND,
        CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        CUresult::CUDA_ERROR_INVALID_HANDLE,
        CUresult::CUDA_ERROR_ILLEGAL_STATE,
        CUresult::CUDA_ERROR_NOT_FOUND,
        CUresult::CUDA_ERROR_NOT_READY,
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        CUresult::CUDA_ERROR_NOT_PERMITTED,
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUresult::CUDA_ERROR_CAPTURED_EVENT,
        CUresult::CUDA_ERROR_UNKNOWN,
    ];
    for code in codes {
        let (mut name, mut text) = (null(), null());
        // SAFETY: room for both answers.
        let answers = unsafe { (sys::cuGetErrorName(code, &raw mut name), sys::cuGetErrorString(code, &raw mut text)) };
        report.say("name", format!("{:?} {}", answers.0, shown(code, name)));
        report.say("text", format!("{:?} {}", answers.1, shown(code, text)));
    }
    // SAFETY: null is what is asked about.
    report.say("name to null", format!("{:?}", unsafe { sys::cuGetErrorName(CUresult::CUDA_SUCCESS, null_mut()) }));
}
