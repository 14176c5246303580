//! Modules, libraries, functions, launches.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use vgpu_test_programs::cuda::{self, sys::*};
use vgpu_test_programs::ptx::{EXTRAS, SPIN};

use crate::report::Report;
use crate::setup::require;

/// The test kernels, loaded.
pub struct Kernels {
    spin: CUfunction,
}

/// Loads the kernels into the current context.
pub fn kernels() -> Kernels {
    let (mut module, mut spin) = (null_mut(), null_mut());
    // SAFETY: the image is NUL-terminated and the out-pointers are valid.
    unsafe {
        require("module", cuModuleLoadData(&raw mut module, SPIN.as_ptr().cast()));
        require("function", cuModuleGetFunction(&raw mut spin, module, c"spin".as_ptr()));
    }
    Kernels { spin }
}

impl Kernels {
    /// Keeps the GPU busy for `ns`.
    pub fn spin(&self, ns: u64, stream: CUstream) {
        require("launch", launch(self.spin, [1; 3], [1; 3], stream, &mut [(&raw const ns).cast_mut().cast()]));
    }
}

pub fn launch(function: CUfunction, grid: [u32; 3], block: [u32; 3], stream: CUstream, arguments: &mut [*mut c_void]) -> CUresult {
    let arguments = if arguments.is_empty() { null_mut() } else { arguments.as_mut_ptr() };
    // SAFETY: the arguments are those of the function.
    unsafe { cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], 0, stream, arguments, null_mut()) }
}

pub fn ask(report: &mut Report) {
    require("start", cuda::start(0).err().unwrap_or(CUresult::CUDA_SUCCESS));
    report.measure();
    let (mut module, mut function, mut address, mut size, mut value) = (null_mut(), null_mut(), 0, 0, -1);
    // SAFETY: images are NUL-terminated; out-pointers are valid; handles are used while they live.
    unsafe {
        report.code("load of garbage", cuModuleLoadData(&raw mut module, c"\x01\x02garbage".as_ptr().cast()));
        report.code("load of prose", cuModuleLoadData(&raw mut module, c"hello world".as_ptr().cast()));
        report.code(
            "load of broken PTX",
            cuModuleLoadData(&raw mut module, c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry x(){".as_ptr().cast()),
        );
        report.code("load of null", cuModuleLoadData(&raw mut module, null()));
        report.code("load of no file", cuModuleLoad(&raw mut module, c"/nonexistent".as_ptr()));
        report.code("load", cuModuleLoadData(&raw mut module, EXTRAS.as_ptr().cast()));
        report.growth("with 64M of globals costs");
        report.code("function", cuModuleGetFunction(&raw mut function, module, c"empty".as_ptr()));
        report.code("no function", cuModuleGetFunction(&mut null_mut(), module, c"nothing".as_ptr()));
        report.code("global", cuModuleGetGlobal_v2(&raw mut address, &raw mut size, module, c"big".as_ptr()));
        report.answer("its size", size);
        report.code("no global", cuModuleGetGlobal_v2(&raw mut address, &raw mut size, module, c"nothing".as_ptr()));
        report.code("cuMemFree of a global", cuMemFree_v2(address));
        let mut count = 0;
        report.code("count", cuModuleGetFunctionCount(&raw mut count, module));
        report.answer("functions", count);
        report.code("launch", launch(function, [1; 3], [1; 3], null_mut(), &mut []));
        report.code("launch of no grid", launch(function, [0, 1, 1], [1; 3], null_mut(), &mut []));
        report.code("launch of no block", launch(function, [1; 3], [0, 1, 1], null_mut(), &mut []));
        report.code("launch of 1025 threads", launch(function, [1; 3], [1025, 1, 1], null_mut(), &mut []));
        report.code("launch of 65536 in y", launch(function, [1, 65536, 1], [1; 3], null_mut(), &mut []));
        report.code("launch of null", launch(null_mut(), [1; 3], [1; 3], null_mut(), &mut []));
        report.code("synchronize", cuCtxSynchronize());
        report.growth("launched");
        report.code(
            "local size of null",
            cuFuncGetAttribute(&raw mut value, CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, null_mut()),
        );
        require("function", cuModuleGetFunction(&raw mut function, module, c"deep".as_ptr()));
        report.code("local size", cuFuncGetAttribute(&raw mut value, CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
        report.answer("is", value);
        report.growth("before its first launch");
        let mut out = 0_u64;
        require("alloc", cuMemAlloc_v2(&raw mut out, 4096));
        report.growth("4096");
        report.code("launch", launch(function, [1; 3], [32, 1, 1], null_mut(), &mut [(&raw mut out).cast()]));
        report.growth("its local memory");
        require("synchronize", cuCtxSynchronize());
        let mut stack = 0;
        require("limit", cuCtxGetLimit(&raw mut stack, CUlimit::CU_LIMIT_STACK_SIZE));
        report.answer("stack limit is then", stack);
        require("limit", cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 1024));
        report.growth("stack set back");
        require("free", cuMemFree_v2(out));
        report.code("unload", cuModuleUnload(module));
        report.growth("unloaded");
        library(report);
    }
}

fn library(report: &mut Report) {
    let (mut library, mut kernel, mut function, mut module) = (null_mut(), null_mut(), null_mut(), null_mut());
    let (mut address, mut size) = (0, 0);
    // SAFETY: as in `ask`.
    unsafe {
        report.code(
            "library",
            cuLibraryLoadData(&raw mut library, EXTRAS.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0),
        );
        report.growth("library costs");
        report.code("kernel", cuLibraryGetKernel(&raw mut kernel, library, c"empty".as_ptr()));
        report.code("no kernel", cuLibraryGetKernel(&mut null_mut(), library, c"nothing".as_ptr()));
        report.growth("kernel costs");
        report.code("launch of the kernel", launch(kernel.cast(), [1; 3], [1; 3], null_mut(), &mut []));
        report.growth("launch costs");
        report.code("its function", cuKernelGetFunction(&raw mut function, kernel));
        report.code("its module", cuLibraryGetModule(&raw mut module, library));
        report.code("global", cuLibraryGetGlobal(&raw mut address, &raw mut size, library, c"big".as_ptr()));
        report.growth("global costs");
        report.code("synchronize", cuCtxSynchronize());
        report.code("unload", cuLibraryUnload(library));
        report.growth("unloaded");
    }
}
