//! Types and constants of NVML's interface. The tests compare each with `nvml-wrapper-sys`.

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
    /// Total memory.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// Used memory.
    pub used: u64,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryV2 {
    /// Size of the structure in bytes, and its version in the upper byte.
    pub version: u32,
    /// Total memory.
    pub total: u64,
    /// Memory reserved by the driver.
    pub reserved: u64,
    /// Free memory.
    pub free: u64,
    /// Used memory.
    pub used: u64,
}

/// `nvmlProcessInfo_t` of the third version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// Process, in the reader's PID namespace.
    pub pid: u32,
    /// Used memory in bytes; all ones if not available.
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
    /// Process, in the reader's PID namespace.
    pub pid: u32,
    /// Used memory in bytes; all ones if not available.
    pub used: u64,
}

/// `nvmlProcessDetail_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessDetail {
    /// Process, in the reader's PID namespace.
    pub pid: u32,
    /// Used memory in bytes; all ones if not available.
    pub used: u64,
    /// `gpuInstanceId`
    pub gpu_instance: u32,
    /// `computeInstanceId`
    pub compute_instance: u32,
    /// Part of the used memory that is protected, in bytes.
    pub protected: u64,
}

/// `nvmlProcessDetailList_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessDetails {
    /// Size of the structure in bytes, and its version in the upper byte.
    pub version: u32,
    /// Kind of processes: 0 compute, 1 graphics, 2 MPS.
    pub mode: u32,
    /// Room in the list before the call, number of entries after it.
    pub count: u32,
    /// List of entries.
    pub entries: *mut ProcessDetail,
}

/// `nvmlProcessUtilizationSample_t`, in percent of the GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UtilizationSample {
    /// Process, in the reader's PID namespace.
    pub pid: u32,
    /// Time of the sample, in microseconds of `CLOCK_REALTIME`.
    pub time: u64,
    /// Utilization of the multiprocessors.
    pub sm: u32,
    /// Utilization of the memory bandwidth.
    pub memory: u32,
    /// Utilization of the encoder.
    pub encoder: u32,
    /// Utilization of the decoder.
    pub decoder: u32,
}

/// `nvmlProcessUtilizationInfo_v1_t`, in percent of the GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUtilization {
    /// Time of the sample, in microseconds of `CLOCK_REALTIME`.
    pub time: u64,
    /// Process, in the reader's PID namespace.
    pub pid: u32,
    /// Utilization of multiprocessors, memory bandwidth, encoder, decoder, JPEG and optical flow engines.
    pub used: [u32; 6],
}

/// `nvmlProcessesUtilizationInfo_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Utilizations {
    /// Size of the structure in bytes, and its version in the upper byte.
    pub version: u32,
    /// Room in the list before the call, number of entries after it.
    pub count: u32,
    /// Earliest time of a sample, in microseconds of `CLOCK_REALTIME`.
    pub since: u64,
    /// List of entries.
    pub entries: *mut ProcessUtilization,
}

/// `nvmlUtilization_t`, in percent of the sample period.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UtilizationRates {
    /// Share of the time in which a kernel ran.
    pub gpu: u32,
    /// Share of the time in which device memory was read or written.
    pub memory: u32,
}

/// `NVML_FI_DEV_POWER_AVERAGE`: mean power over one second in milliwatts, "supported on Ampere (except GA100) or newer architectures"
/// (nvml.h).
pub const POWER_AVERAGE: u32 = 185;

/// `nvmlFieldValue_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldValue {
    /// Identifier of the value.
    pub field: u32,
    /// Part of the device.
    pub scope: u32,
    /// Time of the sample, in microseconds of `CLOCK_REALTIME`.
    pub time: i64,
    /// Time that reading the value took, in microseconds.
    pub latency: i64,
    /// Member of the union that holds the value.
    pub kind: u32,
    /// Status of the value; [`SUCCESS`] if there is one.
    pub status: Status,
    /// Union of values; unsigned integers of 32 and 64 bits are read from it.
    pub value: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use nvml_wrapper_sys::bindings as sys;

    #[test]
    fn declarations_match_nvml() {
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
