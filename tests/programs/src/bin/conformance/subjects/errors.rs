//! Names and texts of error codes.

use std::ffi::{CStr, c_char};
use std::ptr::null;

use vgpu_test_programs::cuda::{self, sys::CUresult};

use crate::report::Report;

/// Signature of `cuGetErrorName` and `cuGetErrorString` for numbers that the bindings' type does not have.
type Look = unsafe extern "C" fn(u32, *mut *const c_char) -> CUresult;

fn look(function: Look, code: u32) -> (CUresult, String) {
    let mut text = null();
    // SAFETY: the out-pointer is valid.
    let answer = unsafe { function(code, &raw mut text) };
    if text.is_null() {
        return (answer, "null".to_owned());
    }
    // SAFETY: the driver returned a NUL-terminated static string.
    (answer, unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The codes of CUDA 13.0. Driver 580 crashes for others.
const CODES: &[u32] = &[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 34, 36, 46, 47, 100, 101, 102, 200, 201, 202, 205, 206, 207, 208, 209, 210, 211, 212, 213, 214, 215, 216,
    217, 218, 219, 220, 221, 222, 223, 224, 225, 226, 227, 300, 301, 302, 303, 304, 400, 401, 402, 500, 600, 700, 701, 702, 703, 704, 705,
    708, 709, 710, 711, 712, 713, 714, 715, 716, 717, 718, 719, 720, 721, 800, 801, 802, 803, 804, 805, 806, 807, 808, 809, 810, 811, 812,
    900, 901, 902, 903, 904, 905, 906, 907, 908, 909, 910, 911, 912, 913, 914, 915, 999,
];

pub fn ask(report: &mut Report) {
    // SAFETY: both functions have this signature, except that the code is an enum of the same size.
    let (name, text) = unsafe { (cuda::symbol::<Look>(c"cuGetErrorName"), cuda::symbol::<Look>(c"cuGetErrorString")) };
    for &code in CODES {
        let named = look(name, code);
        if named.0 == CUresult::CUDA_SUCCESS {
            let texted = look(text, code);
            report.answer(code, format!("{} {} {}", named.1, texted.0 as u32, texted.1));
        }
    }
}
