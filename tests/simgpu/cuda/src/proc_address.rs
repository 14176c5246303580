//! `cuGetProcAddress`: resolves a name and a CUDA version to an exported function.

use std::ffi::{c_char, c_void};

use cudarc::driver::sys::CUresult;
use simgpu_device::face;

use crate::api::EXPORTS;
use crate::ffi::{CudaResult, INVALID_VALUE, put, put_optional, read_str};

/// Symbols of a name by the CUDA version that introduced them, newest first, as reported by driver 580 for the versions that the
/// conformance program queries. An unlisted name resolves to `name_v2` from version 3020 on, if that exists.
const VERSIONS: &[(&str, &[(i32, &str)])] = &[
    ("cuCtxCreate", &[(12050, "cuCtxCreate_v4"), (11040, "cuCtxCreate_v3"), (3020, "cuCtxCreate_v2"), (0, "cuCtxCreate")]),
    ("cuCtxDestroy", &[(4000, "cuCtxDestroy_v2"), (0, "cuCtxDestroy")]),
    ("cuCtxGetCurrent", &[(4000, "cuCtxGetCurrent")]),
    ("cuCtxGetDevice", &[(13000, "cuCtxGetDevice_v2"), (0, "cuCtxGetDevice")]),
    ("cuCtxPopCurrent", &[(4000, "cuCtxPopCurrent_v2"), (0, "cuCtxPopCurrent")]),
    ("cuCtxPushCurrent", &[(4000, "cuCtxPushCurrent_v2"), (0, "cuCtxPushCurrent")]),
    ("cuCtxSetCurrent", &[(4000, "cuCtxSetCurrent")]),
    ("cuCtxSetLimit", &[(3010, "cuCtxSetLimit")]),
    ("cuCtxSynchronize", &[(13000, "cuCtxSynchronize_v2"), (0, "cuCtxSynchronize")]),
    ("cuDeviceGetUuid", &[(11040, "cuDeviceGetUuid_v2"), (9020, "cuDeviceGetUuid")]),
    ("cuDevicePrimaryCtxRelease", &[(11000, "cuDevicePrimaryCtxRelease_v2"), (7000, "cuDevicePrimaryCtxRelease")]),
    ("cuDevicePrimaryCtxReset", &[(11000, "cuDevicePrimaryCtxReset_v2"), (7000, "cuDevicePrimaryCtxReset")]),
    ("cuDevicePrimaryCtxRetain", &[(7000, "cuDevicePrimaryCtxRetain")]),
    ("cuDevicePrimaryCtxSetFlags", &[(11000, "cuDevicePrimaryCtxSetFlags_v2"), (7000, "cuDevicePrimaryCtxSetFlags")]),
    ("cuEventDestroy", &[(4000, "cuEventDestroy_v2"), (0, "cuEventDestroy")]),
    ("cuEventElapsedTime", &[(12080, "cuEventElapsedTime_v2"), (0, "cuEventElapsedTime")]),
    ("cuEventRecordWithFlags", &[(11010, "cuEventRecordWithFlags")]),
    ("cuGetProcAddress", &[(12000, "cuGetProcAddress_v2"), (11030, "cuGetProcAddress")]),
    ("cuGraphAddDependencies", &[(12030, "cuGraphAddDependencies_v2"), (10000, "cuGraphAddDependencies")]),
    ("cuGraphAddKernelNode", &[(12000, "cuGraphAddKernelNode_v2"), (10000, "cuGraphAddKernelNode")]),
    ("cuGraphAddMemAllocNode", &[(11040, "cuGraphAddMemAllocNode")]),
    ("cuGraphAddNode", &[(13040, "cuGraphAddNode_v3"), (12030, "cuGraphAddNode_v2"), (12020, "cuGraphAddNode")]),
    ("cuGraphExecKernelNodeSetParams", &[(12000, "cuGraphExecKernelNodeSetParams_v2"), (10010, "cuGraphExecKernelNodeSetParams")]),
    ("cuGraphExecUpdate", &[(12000, "cuGraphExecUpdate_v2"), (10020, "cuGraphExecUpdate")]),
    ("cuGraphInstantiate", &[(11000, "cuGraphInstantiate_v2"), (10000, "cuGraphInstantiate")]),
    ("cuGraphInstantiateWithFlags", &[(11040, "cuGraphInstantiateWithFlags")]),
    ("cuGraphInstantiateWithParams", &[(12000, "cuGraphInstantiateWithParams")]),
    ("cuGraphLaunch", &[(10000, "cuGraphLaunch")]),
    ("cuGraphNodeSetParams", &[(13040, "cuGraphNodeSetParams_v2"), (12020, "cuGraphNodeSetParams")]),
    ("cuGraphUpload", &[(11010, "cuGraphUpload")]),
    ("cuIpcOpenMemHandle", &[(11000, "cuIpcOpenMemHandle_v2"), (4010, "cuIpcOpenMemHandle")]),
    ("cuLaunchCooperativeKernel", &[(9000, "cuLaunchCooperativeKernel")]),
    ("cuLaunchHostFunc", &[(13020, "cuLaunchHostFunc_v2"), (10000, "cuLaunchHostFunc")]),
    ("cuLaunchKernel", &[(4000, "cuLaunchKernel")]),
    ("cuLaunchKernelEx", &[(11060, "cuLaunchKernelEx")]),
    ("cuMemAdvise", &[(12020, "cuMemAdvise_v2"), (8000, "cuMemAdvise")]),
    ("cuMemAlloc", &[(13060, "cuMemAlloc_v3"), (3020, "cuMemAlloc_v2"), (0, "cuMemAlloc")]),
    ("cuMemAllocAsync", &[(11020, "cuMemAllocAsync")]),
    ("cuMemAllocFromPoolAsync", &[(11020, "cuMemAllocFromPoolAsync")]),
    ("cuMemAllocManaged", &[(6000, "cuMemAllocManaged")]),
    ("cuMemCreate", &[(10020, "cuMemCreate")]),
    ("cuMemFreeAsync", &[(11020, "cuMemFreeAsync")]),
    ("cuMemHostGetDevicePointer", &[(3020, "cuMemHostGetDevicePointer_v2"), (2020, "cuMemHostGetDevicePointer")]),
    ("cuMemHostRegister", &[(6050, "cuMemHostRegister_v2"), (4000, "cuMemHostRegister")]),
    ("cuMemPoolCreate", &[(11020, "cuMemPoolCreate")]),
    ("cuMemPrefetchAsync", &[(12020, "cuMemPrefetchAsync_v2"), (8000, "cuMemPrefetchAsync")]),
    ("cuMulticastBindAddr", &[(13010, "cuMulticastBindAddr_v2"), (12010, "cuMulticastBindAddr")]),
    ("cuMulticastBindMem", &[(13010, "cuMulticastBindMem_v2"), (12010, "cuMulticastBindMem")]),
    ("cuMemcpy", &[(4000, "cuMemcpy")]),
    ("cuMemcpyAsync", &[(4000, "cuMemcpyAsync")]),
    ("cuMemcpyPeer", &[(4000, "cuMemcpyPeer")]),
    ("cuMemsetD8Async", &[(3020, "cuMemsetD8Async")]),
    ("cuStreamBeginCapture", &[(10010, "cuStreamBeginCapture_v2"), (10000, "cuStreamBeginCapture")]),
    ("cuStreamDestroy", &[(4000, "cuStreamDestroy_v2"), (0, "cuStreamDestroy")]),
    (
        "cuStreamGetCaptureInfo",
        &[(12030, "cuStreamGetCaptureInfo_v3"), (11030, "cuStreamGetCaptureInfo_v2"), (10010, "cuStreamGetCaptureInfo")],
    ),
    ("cuStreamGetCtx", &[(12050, "cuStreamGetCtx_v2"), (9020, "cuStreamGetCtx")]),
    ("cuStreamIsCapturing", &[(10000, "cuStreamIsCapturing")]),
    ("cuStreamWaitEvent", &[(3020, "cuStreamWaitEvent")]),
    ("cuStreamWaitValue32", &[(11070, "cuStreamWaitValue32_v2"), (8000, "cuStreamWaitValue32")]),
    ("cuStreamWriteValue64", &[(11070, "cuStreamWriteValue64_v2"), (9000, "cuStreamWriteValue64")]),
    ("cuThreadExchangeStreamCaptureMode", &[(10010, "cuThreadExchangeStreamCaptureMode")]),
];

const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_TOO_OLD: u32 = 2;
const PER_THREAD: u64 = 1 << 1;
/// CUDA version that introduced per-thread default streams.
const PER_THREAD_SINCE: i32 = 7000;
/// Suffixes that are not part of the names that programs query.
const SUFFIXES: [&str; 5] = ["_v2", "_v3", "_v4", "_ptsz", "_ptds"];

fn exported(name: &str) -> Option<*const ()> {
    EXPORTS.iter().find(|export| export.name == name && !face::lacks(name)).map(|export| export.address)
}

/// Returns the symbol and address of a name for a version, or a `CUdriverProcAddressQueryResult`.
fn resolve(name: &str, version: i32, flags: u64) -> Result<(String, *const ()), u32> {
    if SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
        return Err(SYMBOL_NOT_FOUND);
    }
    let listed = VERSIONS.iter().find(|(listed, _)| *listed == name);
    let symbol = match listed {
        Some((_, versions)) => versions.iter().find(|(since, _)| version >= *since).ok_or(VERSION_TOO_OLD)?.1.to_owned(),
        None if version >= 3020 && exported(&format!("{name}_v2")).is_some() => format!("{name}_v2"),
        None => name.to_owned(),
    };
    if flags & PER_THREAD != 0 {
        let forms = |symbol: &str| ["_ptsz", "_ptds"].map(|suffix| format!("{symbol}{suffix}"));
        let has_one = |symbol: &str| forms(symbol).iter().any(|form| exported(form).is_some());
        if version < PER_THREAD_SINCE && (has_one(name) || has_one(&format!("{name}_v2"))) {
            return Err(VERSION_TOO_OLD);
        }
        for form in forms(&symbol) {
            if let Some(address) = exported(&form) {
                return Ok((form, address));
            }
        }
    }
    exported(&symbol).map(|address| (symbol, address)).ok_or(SYMBOL_NOT_FOUND)
}

fn get_proc_address(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64, status: *mut u32) -> CudaResult {
    let name = read_str(name)?;
    if out.is_null() || flags > 2 || version > face::cuda_version() {
        return Err(INVALID_VALUE);
    }
    match resolve(name, version, flags) {
        Ok((_, address)) => {
            put_optional(status, FOUND);
            put(out, address.cast_mut().cast())
        }
        Err(why) => {
            put(out, std::ptr::null_mut())?;
            // A caller that requests the status gets it instead of an error.
            if status.is_null() {
                return Err(CUresult::CUDA_ERROR_NOT_FOUND);
            }
            put(status, why)
        }
    }
}

api! {
    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64) {
        get_proc_address(name, out, version, flags, std::ptr::null_mut())
    }

    fn cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64, status: *mut u32) {
        get_proc_address(name, out, version, flags, status)
    }
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn version_and_flags_select_the_symbol() {
        let cases = [
            ("cuMemAlloc", 13000, 0, Some("cuMemAlloc_v2")),
            ("cuMemAlloc", 2000, 0, Some("cuMemAlloc")),
            ("cuMemAlloc", 13000, 2, Some("cuMemAlloc_v2")),
            ("cuMemAlloc", 13060, 0, Some("cuMemAlloc_v3")),
            ("cuGetProcAddress", 11030, 0, Some("cuGetProcAddress")),
            ("cuGetProcAddress", 12000, 0, Some("cuGetProcAddress_v2")),
            ("cuCtxCreate", 12000, 0, Some("cuCtxCreate_v3")),
            ("cuCtxGetDevice", 12090, 0, Some("cuCtxGetDevice")),
            ("cuCtxGetDevice", 13000, 0, Some("cuCtxGetDevice_v2")),
            ("cuNothing", 13000, 0, None),
        ];
        for (name, version, flags, expected) in cases {
            let symbol = resolve(name, version, flags).ok().map(|(symbol, _)| symbol);
            assert_eq!(symbol.as_deref(), expected, "{name} {version} {flags}");
        }
    }
}
