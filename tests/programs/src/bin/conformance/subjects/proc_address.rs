//! The symbol that a name selects for a CUDA version.

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;

use vgpu_test_programs::cuda::{
    self,
    sys::{self, CUresult},
};

use crate::report::Report;
use crate::setup::require;

type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> CUresult;

const NAMES: &[&str] = &[
    "cuArray3DCreate",
    "cuArrayCreate",
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxGetDevice",
    "cuCtxGetCurrent",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuCtxSetLimit",
    "cuCtxSynchronize",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxSetFlags",
    "cuDeviceTotalMem",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuGetProcAddress",
    "cuGraphAddDependencies",
    "cuGraphAddKernelNode",
    "cuGraphAddMemAllocNode",
    "cuGraphAddNode",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphExecUpdate",
    "cuGraphInstantiate",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuIpcOpenMemHandle",
    "cuLaunchCooperativeKernel",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemAdvise",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocHost",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemCreate",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemGetAddressRange",
    "cuMemGetInfo",
    "cuMemHostGetDevicePointer",
    "cuMemHostRegister",
    "cuMemPrefetchAsync",
    "cuMemcpy",
    "cuMemcpy2D",
    "cuMemcpy2DAsync",
    "cuMemcpy3D",
    "cuMemcpyAsync",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoD",
    "cuMemcpyPeer",
    "cuMemsetD8",
    "cuMemsetD8Async",
    "cuMemsetD2D32",
    "cuModuleGetGlobal",
    "cuMemPoolCreate",
    "cuStreamBeginCapture",
    "cuStreamDestroy",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32",
    "cuStreamWriteValue64",
    "cuInit",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemAlloc_v2",
    "cuLaunchKernel_ptsz",
    "cuNoSuchFunction",
    "nvmlInit",
    "",
];

/// The requested versions of CUDA; an answer is printed only where it changes.
const VERSIONS: &[i32] = &[
    2000, 2010, 2020, 3000, 3010, 3020, 4000, 4010, 4020, 5000, 5050, 6000, 6050, 7000, 7050, 8000, 9000, 9010, 9020, 10000, 10010, 10020,
    11000, 11010, 11020, 11030, 11040, 11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090, 13000,
];

/// Returns the exported symbols at an address, of those that a name can select.
fn symbol_at(name: &str, address: *mut c_void) -> String {
    let versions = ["", "_v2", "_v3", "_v4", "WithFlags"];
    let suffixes = ["", "_ptsz", "_ptds"];
    let candidates = versions.iter().flat_map(|version| suffixes.iter().map(move |suffix| format!("{name}{version}{suffix}")));
    let found = candidates.filter(|candidate| {
        // SAFETY: only the symbol's address is used.
        unsafe { sys::culib().get::<*mut c_void>(candidate.as_bytes()) }.is_ok_and(|symbol| *symbol == address)
    });
    let found = found.collect::<Vec<_>>();
    if found.is_empty() { "no exported symbol".to_owned() } else { found.join(" = ") }
}

pub fn ask(report: &mut Report) {
    // SAFETY: the function has this signature, except that the status is an enum of the same size.
    let get = unsafe {
        require("cuInit", sys::cuInit(0));
        cuda::symbol::<Get>(c"cuGetProcAddress_v2")
    };
    for name in NAMES {
        let text = CString::new(*name).expect("a name without zero bytes");
        for flags in 0..=2 {
            let mut answers = Vec::<String>::new();
            let mut last = String::new();
            for version in VERSIONS {
                let (mut address, mut status) = (null_mut(), 77);
                // SAFETY: the name is NUL-terminated and both out-pointers are valid.
                let code = unsafe { get(text.as_ptr(), &raw mut address, *version, flags, &raw mut status) };
                let symbol = if address.is_null() { "null".to_owned() } else { symbol_at(name, address) };
                let answer = format!("{} {status} {symbol}", code as u32);
                if answer != last {
                    answers.push(format!("{version}: {answer}"));
                    last = answer;
                }
            }
            report.answer(format!("{name} {flags}"), answers.join(", "));
        }
    }
    let mut address = null_mut();
    // SAFETY: null is the question.
    unsafe {
        report.code("null status", get(c"cuInit".as_ptr(), &raw mut address, 13000, 0, null_mut()));
        report.code("flags 4", get(c"cuInit".as_ptr(), &raw mut address, 13000, 4, null_mut()));
        report.code("version 14000", get(c"cuInit".as_ptr(), &raw mut address, 14000, 0, null_mut()));
    }
}
