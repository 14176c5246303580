//! Functions of a driver newer than vgpu that are withheld from programs: a program finds none, as on an older driver.
//!
//! Of the functions that are in no list of vgpu's, a function is withheld if
//!
//! 1. it is a newer form (`_v4`) of an intercepted one, so that it does the same in a way that is not known, or
//! 2. its name has a word of [`WORDS`], so that it probably starts work or takes device memory.
//!
//! All others are passed on. What they take of device memory is charged at the next reconciliation with NVML.

use core::ffi::{CStr, c_char, c_void};

use vgpu_region::limits::LogLevel;

use super::by_address;
use crate::entry_points::names;
use crate::os::log;
use crate::os::log::Throttle;

/// Words in the names of functions that start work on the GPU or take device memory.
const WORDS: [&[u8]; 5] = [b"Alloc", b"Async", b"Launch", b"Memcpy", b"Memset"];
/// Functions with such a word that do neither, or are known gaps: those of `tests/surface`. Names are zero-terminated.
const KNOWN: &[u8] = b"cuDeviceRegisterAsyncNotification\0cuDeviceUnregisterAsyncNotification\0cuGLMapBufferObjectAsync\0\
    cuGLMapBufferObjectAsync_v2\0cuGLMapBufferObjectAsync_v2_ptsz\0cuGLUnmapBufferObjectAsync\0cuGraphAddMemAllocNode\0\
    cuGraphMemAllocNodeGetParams\0cuGraphMemcpyNodeGetParams\0cuGraphMemsetNodeGetParams\0\
    cuMemAllocHost\0cuMemAllocHost_v2\0cuMemDiscardBatchAsync\0cuMemDiscardBatchAsync_ptsz\0\
    cuMemGetAllocationGranularity\0cuMemHostAlloc\0cuSignalExternalSemaphoresAsync\0\
    cuSignalExternalSemaphoresAsync_ptsz\0cuStreamAttachMemAsync\0cuStreamAttachMemAsync_ptsz\0cuTensorMapSetAllocationClass\0\
    cudbgEnableLaunchBlocking\0";
/// Limits the warnings.
static WARNED: Throttle = Throttle::new();

/// Returns whether a function of the driver or of NVML with this name would be withheld. An intercepted one is not.
pub fn is_withheld(name: &CStr) -> bool {
    let name = name.to_bytes();
    let is_cuda = name.starts_with(b"cu") && name.get(2).is_some_and(|letter| letter.is_ascii_uppercase());
    if !is_cuda && !name.starts_with(b"nvml") || names::find_joined(name, b"").is_some() {
        return false;
    }
    let has = |word: &[u8]| name.windows(word.len()).any(|part| part == word);
    is_form(name) || is_cuda && WORDS.iter().any(|word| has(word)) && !KNOWN.split(|&byte| byte == 0).any(|known| known == name)
}

/// Returns whether the driver answered `cuGetProcAddress` of `name` with a function at `address` that is withheld.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn is_withheld_at(name: *const c_char, address: *mut c_void) -> bool {
    if name.is_null() || address.is_null() || by_address::find(address).is_some() {
        return false;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    is_form(name.to_bytes()) || is_withheld(name)
}

/// Returns whether a name is that of an intercepted function but for the version (`_v2`) and the default stream (`_ptsz`).
fn is_form(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"_ptsz").or(name.strip_suffix(b"_ptds")).unwrap_or(name);
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let stem = if digits > 0 { name.get(..name.len() - digits).and_then(|name| name.strip_suffix(b"_v")) } else { None };
    let stem = stem.unwrap_or(name);
    [&b""[..], b"_v2", b"_v3", b"_v4", b"_v5"].iter().any(|version| names::find_joined(stem, version).is_some())
}

/// Logs that a function is withheld.
pub fn warn(name: &CStr) {
    if WARNED.allow() {
        let name = name.to_str().unwrap_or("?");
        log::line(
            LogLevel::Error,
            format_args!("withheld {name}: vgpu does not know this function of a newer driver, so it could not limit it"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn newer_forms_and_names_of_work_and_memory_are_withheld() {
        for (name, withheld) in [
            (c"cuLaunchKernel", false),
            (c"cuLaunchKernelEx_ptsz", false),
            (c"cuLaunchKernelEx_v2", true),
            (c"cuGraphLaunch_v2_ptsz", true),
            (c"cuLaunchAnything", true),
            (c"cuMemAlloc_v3", true),
            (c"cuMemAllocTomorrow", true),
            (c"cuTomorrowCopyBatchAsync", true),
            (c"cuMemGetInfo_v3", true),
            (c"cuStreamBeginCapture_v3_ptsz", true),
            (c"cuCtxGetDevice_v3", false),
            (c"cuMemHostAlloc", false),
            (c"cuTomorrowQuery", false),
            (c"nvmlDeviceGetMemoryInfo_v3", true),
            (c"nvmlDeviceSetTomorrowAsync_v1", false),
            (c"cudaLaunchKernel", false),
            (c"cublasCreate_v2", false),
            (c"cu", false),
            (c"", false),
        ] {
            assert_eq!(is_withheld(name), withheld, "{name:?}");
        }
    }

    /// What `tests/surface` classifies is known, so none of it is withheld.
    #[test]
    fn classified_functions_are_not_withheld() {
        let mut count = 0;
        for file in ["harmless.toml", "gaps.toml"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/surface").join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            for name in text.split('"').filter(|part| (part.starts_with("cu") || part.starts_with("nvml")) && !part.contains(' ')) {
                assert!(!is_withheld(&CString::new(name).unwrap()), "{name}: intercept it, or add it to KNOWN");
                count += 1;
            }
        }
        assert!(count > 800, "{count} names");
    }
}
