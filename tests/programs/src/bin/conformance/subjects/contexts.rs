//! Contexts, their costs and their limits.

use std::ptr::null_mut;

use vgpu_test_programs::cuda::{
    self,
    sys::{self, CUcontext, CUlimit},
};

use crate::report::Report;
use crate::setup::require;

type Create = unsafe extern "C" fn(*mut sys::CUcontext, u32, i32) -> sys::CUresult;

pub fn ask(report: &mut Report) {
    let (mut context, mut other, mut device, mut flags, mut active) = (null_mut(), null_mut(), -1, 0, -1);
    // SAFETY: out-pointers are valid, or null where that is the question; contexts are used only while they live, except where that is the
    // question.
    unsafe {
        require("cuInit", sys::cuInit(0));
        while sys::cuDevicePrimaryCtxRelease_v2(0) == sys::CUresult::CUDA_SUCCESS {}
        sys::cuCtxSetCurrent(null_mut());
        report.measure();
        report.code("release without retain", sys::cuDevicePrimaryCtxRelease_v2(0));
        report.code("state", sys::cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active));
        report.answer("flags and active", format!("{flags} {active}"));
        report.code("retain", sys::cuDevicePrimaryCtxRetain(&raw mut context, 0));
        report.growth("retain costs");
        report.code("retain again", sys::cuDevicePrimaryCtxRetain(&raw mut other, 0));
        report.answer("the same", context == other);
        report.code("retain of 99", sys::cuDevicePrimaryCtxRetain(&raw mut other, 99));
        report.code("retain to null", sys::cuDevicePrimaryCtxRetain(null_mut(), 0));
        report.code("state", sys::cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active));
        report.answer("flags and active", format!("{flags} {active}"));
        report.code("current", sys::cuCtxGetCurrent(&raw mut other));
        report.answer("retain makes it current", other == context);
        report.code("set current", sys::cuCtxSetCurrent(context));
        report.code("device of current", sys::cuCtxGetDevice(&raw mut device));
        report.answer("device", device);
        report.code("destroying the primary", sys::cuCtxDestroy_v2(context));
    }
    created(report, context);
    limits(report);
    reset(report, context);
}

/// A context in addition to the primary context.
fn created(report: &mut Report, context: CUcontext) {
    let (mut made, mut other) = (null_mut(), null_mut());
    // SAFETY: as in `ask`.
    unsafe {
        let create = cuda::symbol::<Create>(c"cuCtxCreate_v2");
        report.code("create v2", create(&raw mut made, 0, 0));
        report.growth("another context costs");
        report.code("current", sys::cuCtxGetCurrent(&raw mut other));
        report.answer("create makes it current", other == made);
        report.code("create to null", create(null_mut(), 0, 0));
        report.code("create with unknown flags", create(&raw mut other, 0x8000, 0));
        report.code("create on 99", create(&raw mut other, 0, 99));
        let mut address = 0;
        report.code("alloc 4M", sys::cuMemAlloc_v2(&raw mut address, 4 << 20));
        report.growth("alloc in it");
        report.code("pop", sys::cuCtxPopCurrent_v2(&raw mut other));
        report.answer("popped it", other == made);
        report.code("current after pop", sys::cuCtxGetCurrent(&raw mut other));
        report.answer("is the one before", other == context);
        report.code("free from another context", sys::cuMemFree_v2(address));
        report.growth("freed");
        report.code("alloc after pop", sys::cuMemAlloc_v2(&raw mut address, 4 << 20));
        report.growth("alloc in the primary");
        report.code("push", sys::cuCtxPushCurrent_v2(made));
        let mut inner = 0;
        report.code("alloc 8M", sys::cuMemAlloc_v2(&raw mut inner, 8 << 20));
        report.growth("8M in it");
        report.code("destroy", sys::cuCtxDestroy_v2(made));
        report.growth("destroy gives back");
        report.code("current after destroy", sys::cuCtxGetCurrent(&raw mut other));
        report.answer("current is the one before", other == context);
        report.code("free of its memory", sys::cuMemFree_v2(inner));
        report.code("free in the primary", sys::cuMemFree_v2(address));
        report.growth("freed in the primary");
    }
}

/// Limits of the current context.
fn limits(report: &mut Report) {
    // SAFETY: the out-pointers are valid.
    unsafe {
        for (name, limit) in [
            ("stack", CUlimit::CU_LIMIT_STACK_SIZE),
            ("fifo", CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE),
            ("heap", CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE),
            ("depth", CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH),
            ("pending", CUlimit::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT),
            ("fetch", CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY),
            ("persisting", CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE),
        ] {
            let mut value = usize::MAX;
            report.code(format!("limit {name}"), sys::cuCtxGetLimit(&raw mut value, limit));
            report.answer(format!("limit {name} is"), value);
        }
        for stack in [1024, 1025, 2048, 4096, 65536, 100_000, 512, 1024] {
            report.code(format!("stack {stack}"), sys::cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, stack));
            report.growth(format!("stack {stack} costs"));
            let mut value = 0;
            sys::cuCtxGetLimit(&raw mut value, CUlimit::CU_LIMIT_STACK_SIZE);
            report.answer(format!("stack {stack} is then"), value);
        }
        report.code("heap 64M", sys::cuCtxSetLimit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20));
        report.growth("heap 64M costs");
        report.code("fifo 32M", sys::cuCtxSetLimit(CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, 32 << 20));
        report.growth("fifo 32M costs");
    }
}

/// Reset and release of the primary context.
fn reset(report: &mut Report, context: CUcontext) {
    let (mut address, mut other) = (0, null_mut());
    // SAFETY: as in `ask`.
    unsafe {
        report.code("reset", sys::cuDevicePrimaryCtxReset_v2(0));
        report.growth("reset gives back");
        report.code("alloc after reset", sys::cuMemAlloc_v2(&raw mut address, 4096));
        report.code("retain after reset", sys::cuDevicePrimaryCtxRetain(&raw mut other, 0));
        report.growth("retain after reset costs");
        report.answer("the same handle as before the reset", other == context);
        sys::cuCtxSetCurrent(other);
        report.code("alloc", sys::cuMemAlloc_v2(&raw mut address, 4096));
        report.code("release", sys::cuDevicePrimaryCtxRelease_v2(0));
        report.growth("release gives back");
    }
}
