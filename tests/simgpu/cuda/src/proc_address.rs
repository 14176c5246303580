//! `cuGetProcAddress`: which exported function a name means for a CUDA version.

use std::ffi::{c_char, c_void};

use cudarc::driver::sys::CUresult;

use crate::answer::{Answer, INVALID_VALUE, put, put_if, text};
use crate::api::EXPORTS;

/// Since which CUDA version a name means which symbol, newest first. A name that is not here means `name_v2` since 3020 if that exists.
const VERSIONS: &[(&str, &[(i32, &str)])] = &[
    ("cuCtxCreate", &[(12050, "cuCtxCreate_v4"), (11040, "cuCtxCreate_v3"), (3020, "cuCtxCreate_v2"), (0, "cuCtxCreate")]),
    ("cuCtxDestroy", &[(4000, "cuCtxDestroy_v2"), (0, "cuCtxDestroy")]),
    ("cuCtxGetDevice", &[(13000, "cuCtxGetDevice_v2"), (0, "cuCtxGetDevice")]),
    ("cuCtxSynchronize", &[(13000, "cuCtxSynchronize_v2"), (0, "cuCtxSynchronize")]),
    ("cuCtxPopCurrent", &[(4000, "cuCtxPopCurrent_v2"), (0, "cuCtxPopCurrent")]),
    ("cuCtxPushCurrent", &[(4000, "cuCtxPushCurrent_v2"), (0, "cuCtxPushCurrent")]),
    ("cuDeviceGetUuid", &[(11040, "cuDeviceGetUuid_v2"), (0, "cuDeviceGetUuid")]),
    ("cuDevicePrimaryCtxRelease", &[(11000, "cuDevicePrimaryCtxRelease_v2"), (0, "cuDevicePrimaryCtxRelease")]),
    ("cuDevicePrimaryCtxReset", &[(11000, "cuDevicePrimaryCtxReset_v2"), (0, "cuDevicePrimaryCtxReset")]),
    ("cuDevicePrimaryCtxSetFlags", &[(11000, "cuDevicePrimaryCtxSetFlags_v2"), (0, "cuDevicePrimaryCtxSetFlags")]),
    ("cuEventDestroy", &[(4000, "cuEventDestroy_v2"), (0, "cuEventDestroy")]),
    ("cuEventElapsedTime", &[(12080, "cuEventElapsedTime_v2"), (0, "cuEventElapsedTime")]),
    ("cuGetProcAddress", &[(12000, "cuGetProcAddress_v2"), (0, "cuGetProcAddress")]),
    ("cuGraphAddKernelNode", &[(12000, "cuGraphAddKernelNode_v2"), (0, "cuGraphAddKernelNode")]),
    ("cuGraphAddNode", &[(13000, "cuGraphAddNode_v2"), (0, "cuGraphAddNode")]),
    ("cuGraphInstantiate", &[(12000, "cuGraphInstantiateWithFlags"), (11000, "cuGraphInstantiate_v2"), (0, "cuGraphInstantiate")]),
    ("cuIpcOpenMemHandle", &[(11000, "cuIpcOpenMemHandle_v2"), (0, "cuIpcOpenMemHandle")]),
    ("cuMemAdvise", &[(13000, "cuMemAdvise_v2"), (0, "cuMemAdvise")]),
    ("cuMemPrefetchAsync", &[(13000, "cuMemPrefetchAsync_v2"), (0, "cuMemPrefetchAsync")]),
    ("cuMemHostRegister", &[(6050, "cuMemHostRegister_v2"), (0, "cuMemHostRegister")]),
    ("cuModuleGetGlobal", &[(3020, "cuModuleGetGlobal_v2"), (0, "cuModuleGetGlobal")]),
    ("cuStreamBeginCapture", &[(10010, "cuStreamBeginCapture_v2"), (0, "cuStreamBeginCapture")]),
    ("cuStreamDestroy", &[(4000, "cuStreamDestroy_v2"), (0, "cuStreamDestroy")]),
    (
        "cuStreamGetCaptureInfo",
        &[(12030, "cuStreamGetCaptureInfo_v3"), (11030, "cuStreamGetCaptureInfo_v2"), (0, "cuStreamGetCaptureInfo")],
    ),
    ("cuStreamWaitValue32", &[(11070, "cuStreamWaitValue32_v2"), (0, "cuStreamWaitValue32")]),
    ("cuStreamWaitValue64", &[(11070, "cuStreamWaitValue64_v2"), (0, "cuStreamWaitValue64")]),
    ("cuStreamWriteValue32", &[(11070, "cuStreamWriteValue32_v2"), (0, "cuStreamWriteValue32")]),
    ("cuStreamWriteValue64", &[(11070, "cuStreamWriteValue64_v2"), (0, "cuStreamWriteValue64")]),
];

const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_TOO_OLD: u32 = 2;
const PER_THREAD: u64 = 1 << 1;

fn exported(name: &str) -> Option<*const ()> {
    EXPORTS.iter().find(|export| export.name == name).map(|export| export.address)
}

/// The symbol that a name means for a version, and its address.
fn resolve(name: &str, version: i32, flags: u64) -> Option<(String, *const ())> {
    let listed = VERSIONS.iter().find(|(listed, _)| *listed == name).map(|(_, versions)| {
        let known = versions.iter().filter(|(_, symbol)| exported(symbol).is_some());
        known.clone().find(|(since, _)| version >= *since).or_else(|| known.clone().next_back())
    });
    let symbol = match listed.flatten() {
        Some((_, symbol)) => (*symbol).to_owned(),
        None if version >= 3020 && exported(&format!("{name}_v2")).is_some() => format!("{name}_v2"),
        None => name.to_owned(),
    };
    let suffixes: &[&str] = if flags & PER_THREAD != 0 { &["_ptsz", "_ptds", ""] } else { &[""] };
    suffixes.iter().map(|suffix| format!("{symbol}{suffix}")).find_map(|symbol| {
        let address = exported(&symbol)?;
        Some((symbol, address))
    })
}

fn get(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64, status: *mut u32) -> Answer {
    let name = text(name)?;
    if out.is_null() || name.is_empty() || flags > 2 {
        return Err(INVALID_VALUE);
    }
    match resolve(name, version, flags) {
        _ if version < 2000 => {
            put(out, std::ptr::null_mut())?;
            put_if(status, VERSION_TOO_OLD);
            Err(CUresult::CUDA_ERROR_NOT_FOUND)
        }
        Some((_, address)) => {
            put_if(status, FOUND);
            put(out, address.cast_mut().cast())
        }
        None => {
            put(out, std::ptr::null_mut())?;
            put_if(status, SYMBOL_NOT_FOUND);
            Err(CUresult::CUDA_ERROR_NOT_FOUND)
        }
    }
}

api! {
    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64) {
        get(name, out, version, flags, std::ptr::null_mut())
    }

    fn cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: i32, flags: u64, status: *mut u32) {
        get(name, out, version, flags, status)
    }
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn versions_and_flags_choose_the_symbol() {
        let cases = [
            ("cuMemAlloc", 13000, 0, Some("cuMemAlloc_v2")),
            ("cuMemAlloc", 2000, 0, Some("cuMemAlloc")),
            ("cuMemAlloc", 13000, 2, Some("cuMemAlloc_v2")),
            ("cuGetProcAddress", 11030, 0, Some("cuGetProcAddress")),
            ("cuGetProcAddress", 12000, 0, Some("cuGetProcAddress_v2")),
            ("cuCtxCreate", 12000, 0, Some("cuCtxCreate_v3")),
            ("cuCtxGetDevice", 12090, 0, Some("cuCtxGetDevice")),
            ("cuCtxGetDevice", 13000, 0, Some("cuCtxGetDevice_v2")),
            ("cuNothing", 13000, 0, None),
        ];
        for (name, version, flags, expected) in cases {
            let symbol = resolve(name, version, flags).map(|(symbol, _)| symbol);
            assert_eq!(symbol.as_deref(), expected, "{name} {version} {flags}");
        }
    }
}
