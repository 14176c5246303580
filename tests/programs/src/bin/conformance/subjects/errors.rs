//! Names and texts of error codes.

use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

use vgpu_test_programs::cuda::{self, sys::CUresult};

use super::Report;

/// `cuGetErrorName` and `cuGetErrorString`, for numbers that the bindings' type does not have.
type Look = unsafe extern "C" fn(u32, *mut *const c_char) -> CUresult;

fn look(function: Look, code: u32) -> (CUresult, String) {
    let mut text = null();
    // SAFETY: room for the answer.
    let answer = unsafe { function(code, &raw mut text) };
    if text.is_null() {
        return (answer, "null".to_owned());
    }
    // SAFETY: the driver gave a terminated string that lives as long as it.
    (answer, unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

pub fn ask(report: &mut Report) {
    // SAFETY: both have this signature, but for the code's type, which is an enum of that size.
    let (name, text) = unsafe { (cuda::symbol::<Look>(c"cuGetErrorName"), cuda::symbol::<Look>(c"cuGetErrorString")) };
    for code in 0..=1100 {
        let named = look(name, code);
        if named.0 == CUresult::CUDA_SUCCESS {
            let texted = look(text, code);
            report.say(code, format!("{} {} {}", named.1, texted.0 as u32, texted.1));
        }
    }
    report.say("name of 12345", format!("{:?}", look(name, 12345)));
    report.say("text of 12345", format!("{:?}", look(text, 12345)));
    // SAFETY: null is what is asked about.
    report.say("name to null", format!("{:?}", unsafe { name(0, null_mut()) }));
}
