//! The few types and constants of NVML's interface that are touched, compared with `nvml-wrapper-sys` by the tests.

use crate::cuda::Status;

/// `NVML_SUCCESS`
pub const SUCCESS: Status = 0;
/// `NVML_ERROR_UNINITIALIZED`
pub const UNINITIALIZED: Status = 1;
/// `NVML_ERROR_INVALID_ARGUMENT`
pub const INVALID_ARGUMENT: Status = 2;
/// `NVML_ERROR_NOT_FOUND`
pub const NOT_FOUND: Status = 6;
/// `NVML_ERROR_INSUFFICIENT_SIZE`
pub const INSUFFICIENT_SIZE: Status = 7;
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

/// `nvmlProcessInfo_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessV1 {
    /// In the reader's PID namespace.
    pub pid: u32,
    /// Bytes; all ones if not available.
    pub used: u64,
}

/// `nvmlProcessDetail_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessDetail {
    /// In the reader's PID namespace.
    pub pid: u32,
    /// Bytes; all ones if not available.
    pub used: u64,
    /// `gpuInstanceId`
    pub gpu_instance: u32,
    /// `computeInstanceId`
    pub compute_instance: u32,
    /// Bytes of it that are protected.
    pub protected: u64,
}

/// `nvmlProcessDetailList_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessDetails {
    /// Size and version of the structure.
    pub version: u32,
    /// Compute, graphics or MPS.
    pub mode: u32,
    /// Room in the list, then entries.
    pub count: u32,
    /// The list.
    pub entries: *mut ProcessDetail,
}

/// `nvmlProcessUtilizationSample_t`, in percent of the GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UtilizationSample {
    /// In the reader's PID namespace.
    pub pid: u32,
    /// Microseconds of `CLOCK_REALTIME`.
    pub time: u64,
    /// Multiprocessors.
    pub sm: u32,
    /// Memory bandwidth.
    pub memory: u32,
    /// Encoder.
    pub encoder: u32,
    /// Decoder.
    pub decoder: u32,
}

/// `nvmlProcessUtilizationInfo_v1_t`, in percent of the GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUtilization {
    /// Microseconds of `CLOCK_REALTIME`.
    pub time: u64,
    /// In the reader's PID namespace.
    pub pid: u32,
    /// Multiprocessors, memory bandwidth, encoder, decoder, JPEG, optical flow.
    pub used: [u32; 6],
}

/// `nvmlProcessesUtilizationInfo_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Utilizations {
    /// Size and version of the structure.
    pub version: u32,
    /// Room in the list, then entries.
    pub count: u32,
    /// Microseconds of `CLOCK_REALTIME`: samples since.
    pub since: u64,
    /// The list.
    pub entries: *mut ProcessUtilization,
}

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UtilizationRates {
    /// Time in which a kernel ran.
    pub gpu: u32,
    /// Time in which memory was read or written.
    pub memory: u32,
}

/// `NVML_FI_DEV_POWER_AVERAGE`: milliwatts, as a mean over one second, "supported on Ampere (except GA100) or newer architectures" (nvml.h).
/// On the others `nvmlDeviceGetPowerUsage` tells what is drawn at the moment (its documentation).
pub const POWER_AVERAGE: u32 = 185;

/// `nvmlFieldValue_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldValue {
    /// Which value.
    pub field: u32,
    /// Of which part of the device.
    pub scope: u32,
    /// Microseconds of `CLOCK_REALTIME`.
    pub time: i64,
    /// How long it took to be read, in microseconds.
    pub latency: i64,
    /// Which member of the union it is.
    pub kind: u32,
    /// Whether there is a value.
    pub status: Status,
    /// A union; of unsigned integers of 32 and 64 bits both.
    pub value: u64,
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
        assert_eq!(INVALID_ARGUMENT as u32, sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        assert_eq!(NOT_FOUND as u32, sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
        assert_eq!(INSUFFICIENT_SIZE as u32, sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
        assert_eq!(size_of::<ProcessV1>(), size_of::<sys::nvmlProcessInfo_v1_t>());
        assert_eq!(size_of::<ProcessDetail>(), size_of::<sys::nvmlProcessDetail_v1_t>());
        assert_eq!(offset_of!(ProcessDetail, protected), offset_of!(sys::nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory));
        assert_eq!(size_of::<ProcessDetails>(), size_of::<sys::nvmlProcessDetailList_t>());
        assert_eq!(offset_of!(ProcessDetails, entries), offset_of!(sys::nvmlProcessDetailList_t, procArray));
        assert_eq!(size_of::<UtilizationSample>(), size_of::<sys::nvmlProcessUtilizationSample_t>());
        assert_eq!(offset_of!(UtilizationSample, sm), offset_of!(sys::nvmlProcessUtilizationSample_t, smUtil));
        assert_eq!(size_of::<ProcessUtilization>(), size_of::<sys::nvmlProcessUtilizationInfo_v1_t>());
        assert_eq!(offset_of!(ProcessUtilization, pid), offset_of!(sys::nvmlProcessUtilizationInfo_v1_t, pid));
        assert_eq!(size_of::<Utilizations>(), size_of::<sys::nvmlProcessesUtilizationInfo_t>());
        assert_eq!(offset_of!(Utilizations, entries), offset_of!(sys::nvmlProcessesUtilizationInfo_t, procUtilArray));
        assert_eq!(size_of::<UtilizationRates>(), size_of::<sys::nvmlUtilization_t>());
        assert_eq!(POWER_AVERAGE, sys::field_id::NVML_FI_DEV_POWER_AVERAGE);
        assert_eq!(size_of::<FieldValue>(), size_of::<sys::nvmlFieldValue_t>());
        assert_eq!(offset_of!(FieldValue, status), offset_of!(sys::nvmlFieldValue_t, nvmlReturn));
        assert_eq!(offset_of!(FieldValue, value), offset_of!(sys::nvmlFieldValue_t, value));
        assert_eq!(size_of::<Memory>(), size_of::<sys::nvmlMemory_t>());
        assert_eq!(offset_of!(Memory, used), offset_of!(sys::nvmlMemory_t, used));
        assert_eq!(size_of::<MemoryV2>(), size_of::<sys::nvmlMemory_v2_t>());
        assert_eq!(offset_of!(MemoryV2, free), offset_of!(sys::nvmlMemory_v2_t, free));
        assert_eq!(size_of::<Process>(), size_of::<sys::nvmlProcessInfo_t>());
        assert_eq!(offset_of!(Process, used), offset_of!(sys::nvmlProcessInfo_t, usedGpuMemory));
    }
}
