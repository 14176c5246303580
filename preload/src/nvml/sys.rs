//! The few types and constants of NVML's interface that are touched, compared with `nvml-wrapper-sys` by the tests.

use crate::cuda::Status;

/// `NVML_SUCCESS`
pub const SUCCESS: Status = 0;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`
pub const FUNCTION_NOT_FOUND: Status = 13;
/// `NVML_ERROR_OPERATING_SYSTEM`
pub const OPERATING_SYSTEM: Status = 17;

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// All there is.
    pub total: u64,
    /// Not in use.
    pub free: u64,
    /// In use.
    pub used: u64,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryV2 {
    /// Size and version of the structure.
    pub version: u32,
    /// All there is.
    pub total: u64,
    /// Set aside by the driver.
    pub reserved: u64,
    /// Not in use.
    pub free: u64,
    /// In use.
    pub used: u64,
}

/// `nvmlProcessInfo_t` of the third version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// In the reader's PID namespace.
    pub pid: u32,
    /// Bytes; all ones if not available.
    pub used: u64,
    /// `gpuInstanceId`
    pub gpu_instance: u32,
    /// `computeInstanceId`
    pub compute_instance: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use nvml_wrapper_sys::bindings as sys;

    #[test]
    fn declarations_are_nvmls() {
        assert_eq!(SUCCESS as u32, sys::nvmlReturn_enum_NVML_SUCCESS);
        assert_eq!(FUNCTION_NOT_FOUND as u32, sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND);
        assert_eq!(OPERATING_SYSTEM as u32, sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM);
        assert_eq!(size_of::<Memory>(), size_of::<sys::nvmlMemory_t>());
        assert_eq!(offset_of!(Memory, used), offset_of!(sys::nvmlMemory_t, used));
        assert_eq!(size_of::<MemoryV2>(), size_of::<sys::nvmlMemory_v2_t>());
        assert_eq!(offset_of!(MemoryV2, free), offset_of!(sys::nvmlMemory_v2_t, free));
        assert_eq!(size_of::<Process>(), size_of::<sys::nvmlProcessInfo_t>());
        assert_eq!(offset_of!(Process, used), offset_of!(sys::nvmlProcessInfo_t, usedGpuMemory));
    }
}
