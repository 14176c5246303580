//! Calls before and after `cuInit`.

use std::ptr::null_mut;

use vgpu_test_programs::cuda::sys;

use crate::report::Report;
use crate::setup::require;

pub fn ask(report: &mut Report) {
    let (mut number, mut address, mut context) = (-1, 0, null_mut());
    // SAFETY: the out-pointers are valid; a forked child only calls the driver and exits.
    unsafe {
        report.code("cuDeviceGetCount before cuInit", sys::cuDeviceGetCount(&raw mut number));
        report.code("cuMemAlloc before cuInit", sys::cuMemAlloc_v2(&raw mut address, 4096));
        report.code("cuCtxGetCurrent before cuInit", sys::cuCtxGetCurrent(&raw mut context));
        report.code("cuDriverGetVersion before cuInit", sys::cuDriverGetVersion(&raw mut number));
        report.answer("version", number);
        report.code("cuDriverGetVersion(null)", sys::cuDriverGetVersion(null_mut()));
        report.code("cuInit(1)", sys::cuInit(1));
        report.code("cuInit(0)", sys::cuInit(0));
        report.code("cuInit(0) again", sys::cuInit(0));
        report.code("cuMemAlloc without a context", sys::cuMemAlloc_v2(&raw mut address, 4096));
        report.code("cuMemGetInfo without a context", sys::cuMemGetInfo_v2(null_mut(), null_mut()));
        report.code("cuCtxGetDevice without a context", sys::cuCtxGetDevice(&raw mut number));
        report.code("cuCtxSynchronize without a context", sys::cuCtxSynchronize());
        report.code("cuCtxGetCurrent without a context", sys::cuCtxGetCurrent(&raw mut context));
        report.answer("it is null", context.is_null());
    }
    in_child(report, "in a child forked after cuInit");
    require("start", vgpu_test_programs::cuda::start(0).err().unwrap_or(sys::CUresult::CUDA_SUCCESS));
    in_child(report, "in a child forked with a context");
}

fn in_child(report: &Report, what: &str) {
    // SAFETY: the child only makes two calls, prints, and exits without destructors.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut count = -1;
            report.code(format!("cuInit {what}"), sys::cuInit(0));
            report.code(format!("cuDeviceGetCount {what}"), sys::cuDeviceGetCount(&raw mut count));
            libc::_exit(0);
        }
        libc::waitpid(child, null_mut(), 0);
    }
}
