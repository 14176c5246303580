//! The heap of a context for `malloc` in kernels, and granules that contexts of one process share.

use std::ptr::null_mut;

use vgpu_test_programs::{
    cuda::sys::{self, CUlimit},
    ptx,
};

use crate::report::Report;
use crate::setup::require;

const MIB: usize = 1 << 20;

pub fn ask(report: &mut Report) {
    // SAFETY: out-pointers are valid; contexts and modules are used while they live.
    unsafe {
        require("cuInit", sys::cuInit(0));
        report.measure();
        for heap in [0, 4 * MIB, 64 * MIB, 1020 * MIB, 1024 * MIB, 1388 * MIB, 4096 * MIB, 16384 * MIB] {
            heap_of(report, heap);
        }
        shared_granule(report);
    }
}

/// Measures a heap of `bytes` bytes; 0 is the default size.
unsafe fn heap_of(report: &mut Report, bytes: usize) {
    let (mut context, mut module, mut function, mut size) = (null_mut(), null_mut(), null_mut(), 0);
    let text = std::ffi::CString::new(ptx::MALLOC).expect("PTX without zero bytes");
    let what = if bytes == 0 { "heap as it is".to_owned() } else { format!("heap of {} MiB", bytes / MIB) };
    // SAFETY: as in the caller.
    unsafe {
        require("cuCtxCreate", sys::cuCtxCreate_v4(&raw mut context, null_mut(), 0, 0));
        require("cuModuleLoadData", sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()));
        require("cuModuleGetFunction", sys::cuModuleGetFunction(&raw mut function, module, c"take".as_ptr()));
        report.growth(format!("context and module before {what}"));
        if bytes != 0 {
            report.code(&what, sys::cuCtxSetLimit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, bytes));
        }
        report.code(format!("{what}: launch"), sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()));
        report.code(format!("{what}: synchronize"), sys::cuCtxSynchronize());
        report.growth(format!("{what} costs"));
        sys::cuCtxGetLimit(&raw mut size, CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE);
        report.answer(format!("{what} is"), size);
        report.code(format!("{what}: destroy"), sys::cuCtxDestroy_v2(context));
        report.growth(format!("{what}: destroyed"));
    }
}

/// Checks whether small allocations of two contexts lie in one granule.
unsafe fn shared_granule(report: &mut Report) {
    let (mut first, mut second, mut addresses) = (null_mut(), null_mut(), [0; 4]);
    // SAFETY: as in the caller.
    unsafe {
        require("cuCtxCreate", sys::cuCtxCreate_v4(&raw mut first, null_mut(), 0, 0));
        require("cuCtxCreate", sys::cuCtxCreate_v4(&raw mut second, null_mut(), 0, 0));
        report.growth("two contexts");
        for (number, context) in [(0, first), (1, second), (2, first), (3, second)] {
            sys::cuCtxSetCurrent(context);
            report.code(format!("small allocation {number}"), sys::cuMemAlloc_v2(&raw mut addresses[number], 4096));
            report.growth(format!("small allocation {number} costs"));
        }
        report.answer("one granule for both contexts", addresses[0] >> 21 == addresses[1] >> 21);
        report.code("destroy the first", sys::cuCtxDestroy_v2(first));
        report.growth("destroyed the first");
        report.code("destroy the second", sys::cuCtxDestroy_v2(second));
        report.growth("destroyed the second");
    }
}
