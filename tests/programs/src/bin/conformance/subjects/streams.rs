//! Streams, events, memory values, and calls that a capture refuses.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_test_programs::cuda::{self, sys::*};

use super::modules::{Kernels, kernels};
use crate::report::Report;
use crate::setup::require;

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(_data: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

pub fn ask(report: &mut Report) {
    require("start", cuda::start(0).err().unwrap_or(CUresult::CUDA_SUCCESS));
    let kernels = kernels();
    handles(report);
    order(report, &kernels);
    values(report);
    capture(report, &kernels);
    during_a_capture(report, &kernels);
}

fn stream(flags: u32) -> CUstream {
    let mut stream = null_mut();
    // SAFETY: the out-pointer is valid.
    require("stream", unsafe { cuStreamCreate(&raw mut stream, flags) });
    stream
}

fn event(flags: u32) -> CUevent {
    let mut event = null_mut();
    // SAFETY: the out-pointer is valid.
    require("event", unsafe { cuEventCreate(&raw mut event, flags) });
    event
}

fn handles(report: &Report) {
    let (mut made, mut flags, mut priority, mut context) = (null_mut(), 77, 77, null_mut());
    // SAFETY: out-pointers are valid, or null where that is the question.
    unsafe {
        report.code("create", cuStreamCreate(&raw mut made, 0));
        report.code("create with flags 2", cuStreamCreate(&raw mut made, 2));
        report.code("create to null", cuStreamCreate(null_mut(), 0));
        let (mut least, mut greatest) = (77, 77);
        report.code("priorities", cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest));
        report.answer("range", format!("{least} {greatest}"));
        report.code("create of priority -99", cuStreamCreateWithPriority(&raw mut made, 1, -99));
        report.code("its priority", cuStreamGetPriority(made, &raw mut priority));
        report.code("its flags", cuStreamGetFlags(made, &raw mut flags));
        report.answer("priority and flags", format!("{priority} {flags}"));
        report.code("flags of null", cuStreamGetFlags(null_mut(), &raw mut flags));
        report.answer("flags of null are", flags);
        report.code("context of null", cuStreamGetCtx(null_mut(), &raw mut context));
        report.code("query", cuStreamQuery(made));
        report.code("query of null", cuStreamQuery(null_mut()));
        report.code("query of 1", cuStreamQuery(std::ptr::without_provenance_mut(1)));
        report.code("query of 2", cuStreamQuery(std::ptr::without_provenance_mut(2)));
        report.code("destroy", cuStreamDestroy_v2(made));
        report.code("destroy of null", cuStreamDestroy_v2(null_mut()));
        let (first, second) = (event(0), event(2));
        let mut milliseconds = -1.0;
        report.code("query of an unrecorded event", cuEventQuery(first));
        report.code("synchronize of one", cuEventSynchronize(first));
        report.code("elapsed of unrecorded ones", cuEventElapsedTime_v2(&raw mut milliseconds, first, first));
        require("record", cuEventRecord(first, null_mut()));
        require("record", cuEventRecord(second, null_mut()));
        require("synchronize", cuEventSynchronize(second));
        report.code("elapsed with one without a time", cuEventElapsedTime_v2(&raw mut milliseconds, first, second));
        report.code("elapsed of one and itself", cuEventElapsedTime_v2(&raw mut milliseconds, first, first));
        report.answer("is", milliseconds);
        report.code("event with flags 8", cuEventCreate(&mut null_mut(), 8));
        report.code("destroy", cuEventDestroy_v2(first));
        report.code("destroy of null", cuEventDestroy_v2(null_mut()));
    }
}

fn order(report: &Report, kernels: &Kernels) {
    let (one, other, apart) = (stream(0), stream(0), stream(1));
    let (start, end) = (event(0), event(0));
    // SAFETY: handles are used while they live.
    unsafe {
        require("record", cuEventRecord(start, one));
        kernels.spin(20_000_000, one);
        require("record", cuEventRecord(end, one));
        report.code("query while busy", cuStreamQuery(one));
        report.code("event query while busy", cuEventQuery(end));
        report.code("query of an idle stream", cuStreamQuery(apart));
        report.code("query of null while another is busy", cuStreamQuery(null_mut()));
        let mut milliseconds = -1.0;
        report.code("elapsed while busy", cuEventElapsedTime_v2(&raw mut milliseconds, start, end));
        report.code("wait in another stream", cuStreamWaitEvent(other, end, 0));
        report.code("query of the waiting stream", cuStreamQuery(other));
        report.code("host function", cuLaunchHostFunc(other, Some(count), null_mut()));
        report.answer("called before its turn", CALLS.load(Ordering::SeqCst));
        require("synchronize", cuStreamSynchronize(other));
        report.answer("called after its turn", CALLS.load(Ordering::SeqCst));
        report.code("query when done", cuStreamQuery(one));
        report.code("elapsed", cuEventElapsedTime_v2(&raw mut milliseconds, start, end));
        report.answer("20 ms are between 20 and 20.5", (20.0..20.5).contains(&milliseconds));
        report.note(format!("20 ms took {milliseconds}"));
        kernels.spin(20_000_000, one);
        kernels.spin(1000, null_mut());
        report.code("query of a blocking stream after null", cuStreamQuery(null_mut()));
        kernels.spin(1000, apart);
        require("synchronize", cuStreamSynchronize(apart));
        report.code("null stream while a non-blocking one is done", cuStreamQuery(null_mut()));
        require("synchronize", cuCtxSynchronize());
        report.code("null stream after all", cuStreamQuery(null_mut()));
        report.code("host function null", cuLaunchHostFunc(one, None, null_mut()));
    }
}

fn values(report: &Report) {
    let (one, other) = (stream(1), stream(1));
    let mut address = 0;
    // SAFETY: the memory lives until the streams are done.
    unsafe {
        require("alloc", cuMemAlloc_v2(&raw mut address, 64));
        require("set", cuMemsetD8_v2(address, 0, 64));
        report.code("wait for a value", cuStreamWaitValue32_v2(one, address, 5, 1));
        report.code("query of the waiting stream", cuStreamQuery(one));
        report.code("write it", cuStreamWriteValue32_v2(other, address, 5, 0));
        report.code("synchronize", cuStreamSynchronize(one));
        report.code("write 64", cuStreamWriteValue64_v2(other, address + 8, 1 << 40, 0));
        report.code("wait 64 at least", cuStreamWaitValue64_v2(one, address + 8, 1 << 39, 0));
        report.code("synchronize", cuStreamSynchronize(one));
        report.code("write unaligned", cuStreamWriteValue32_v2(other, address + 2, 5, 0));
        report.code("write to null", cuStreamWriteValue32_v2(other, 0, 5, 0));
        require("synchronize", cuCtxSynchronize());
        require("free", cuMemFree_v2(address));
    }
}

fn capture(report: &Report, kernels: &Kernels) {
    let stream = stream(1);
    let (mut graph, mut status, mut address, mut id) = (null_mut(), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0, 0);
    let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let recorded = event(2);
    // SAFETY: the out-pointers are valid; handles are used while they live.
    unsafe {
        report.code("capture of null", cuStreamBeginCapture_v2(null_mut(), global));
        report.code("end without begin", cuStreamEndCapture(stream, &raw mut graph));
        report.code("begin", cuStreamBeginCapture_v2(stream, global));
        report.code("begin twice", cuStreamBeginCapture_v2(stream, global));
        report.code("is capturing", cuStreamIsCapturing(stream, &raw mut status));
        report.answer("status", status as u32);
        report
            .code("info", cuStreamGetCaptureInfo_v3(stream, &raw mut status, &raw mut id, null_mut(), null_mut(), null_mut(), null_mut()));
        kernels.spin(1000, stream);
        report.code("record", cuEventRecord(recorded, stream));
        report.code("end", cuStreamEndCapture(stream, &raw mut graph));
        report.code("destroy", cuGraphDestroy(graph));

        type Question = fn(CUstream, CUevent) -> CUresult;
        let questions: [(&str, Question); 8] = [
            ("stream query", |stream, _| cuStreamQuery(stream)),
            ("stream synchronize", |stream, _| cuStreamSynchronize(stream)),
            ("event query of a captured event", |_, event| cuEventQuery(event)),
            ("context synchronize", |_, _| cuCtxSynchronize()),
            ("cuMemAlloc", |_, _| cuMemAlloc_v2(&mut 0, 4096)),
            ("cuMemGetInfo", |_, _| cuMemGetInfo_v2(&mut 0, &mut 0)),
            ("cuMemcpyHtoD of nothing", |_, _| cuMemcpyHtoD_v2(0, std::ptr::null(), 0)),
            ("query of the null stream", |_, _| cuStreamQuery(null_mut())),
        ];
        for mode in [global, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED]
        {
            for (name, question) in &questions {
                require("begin", cuStreamBeginCapture_v2(stream, mode));
                kernels.spin(1000, stream);
                require("record", cuEventRecord(recorded, stream));
                report.code(format!("{name} in mode {}", mode as u32), question(stream, recorded));
                let code = cuStreamEndCapture(stream, &raw mut graph);
                report.code("end then", code);
                report.answer("graph is null", graph.is_null());
                if code == CUresult::CUDA_SUCCESS {
                    require("destroy", cuGraphDestroy(graph));
                }
            }
        }
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        report.code("exchange mode", cuThreadExchangeStreamCaptureMode(&raw mut mode));
        report.answer("was", mode as u32);
        require("begin", cuStreamBeginCapture_v2(stream, global));
        report.code("cuMemAlloc in a relaxed thread", cuMemAlloc_v2(&raw mut address, 4096));
        report.code("end then", cuStreamEndCapture(stream, &raw mut graph));
        cuThreadExchangeStreamCaptureMode(&raw mut mode);
    }
}

/// Calls during a capture: in another stream, on a pool, and by a thread in relaxed mode.
fn during_a_capture(report: &Report, kernels: &Kernels) {
    let (other, mut pool) = (stream(1), null_mut());
    // SAFETY: the out-pointer is valid.
    require("pool", unsafe { cuDeviceGetDefaultMemPool(&raw mut pool, 0) });
    type Question = fn(CUstream, CUmemoryPool) -> CUresult;
    // SAFETY: the out-pointers are valid; what is freed was allocated just before.
    let questions: [(&str, Question); 9] = unsafe {
        [
            ("cuMemAllocAsync in another stream", |other, _| cuMemAllocAsync(&mut 0, 4096, other)),
            ("synchronize of another stream", |other, _| cuStreamSynchronize(other)),
            ("query of another stream", |other, _| cuStreamQuery(other)),
            ("synchronize of the context", |_, _| cuCtxSynchronize()),
            ("what a pool has reserved", |_, pool| {
                let mut bytes = 0_u64;
                cuMemPoolGetAttribute(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, (&raw mut bytes).cast())
            }),
            ("trim of a pool", |_, pool| cuMemPoolTrimTo(pool, 0)),
            ("cuMemAllocManaged", |_, _| cuMemAllocManaged(&mut 0, 4096, 1)),
            ("cuMemAlloc and cuMemFree", |_, _| {
                let mut address = 0;
                match cuMemAlloc_v2(&raw mut address, 4096) {
                    CUresult::CUDA_SUCCESS => cuMemFree_v2(address),
                    code => code,
                }
            }),
            ("whether the null stream is captured", |_, _| {
                cuStreamIsCapturing(null_mut(), &mut CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
            }),
        ]
    };
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    for (blocking, captured) in [("non-blocking", stream(1)), ("blocking", stream(0))] {
        for mode in [CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, relaxed] {
            for is_relaxed in [false, true] {
                for (name, question) in &questions {
                    // SAFETY: the out-pointers are valid.
                    unsafe {
                        let (mut graph, mut own) = (null_mut(), relaxed);
                        require("begin", cuStreamBeginCapture_v2(captured, mode));
                        kernels.spin(1000, captured);
                        if is_relaxed {
                            require("exchange", cuThreadExchangeStreamCaptureMode(&raw mut own));
                        }
                        let code = question(other, pool);
                        if is_relaxed {
                            require("exchange", cuThreadExchangeStreamCaptureMode(&raw mut own));
                        }
                        let end = cuStreamEndCapture(captured, &raw mut graph);
                        let thread = if is_relaxed { " in a relaxed thread" } else { "" };
                        report.code(format!("{name} beside a {blocking} stream in mode {}{thread}", mode as u32), code);
                        report.code("end then", end);
                        if end == CUresult::CUDA_SUCCESS {
                            require("destroy", cuGraphDestroy(graph));
                        }
                    }
                }
            }
        }
    }
}
