//! The table's rows for NVML.

/// Hands the given rows, and those for NVML, to the macro `$consumer`.
macro_rules! and_nvml {
    ($consumer:ident $($rows:tt)*) => {
        $consumer! {
            $($rows)*
            Nvml nvml_memory::info[device, memory] => (device: Handle, memory: *mut Memory):
                nvmlDeviceGetMemoryInfo, nvmlDeviceGetConfComputeProtectedMemoryUsage;
            Nvml nvml_memory::info[device, memory] => (device: Handle, memory: *mut MemoryV2): nvmlDeviceGetMemoryInfo_v2;
            Nvml nvml_processes::list => (device: Handle, count: *mut u32, out: *mut ProcessV1):
                nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses;
            Nvml nvml_processes::list => (device: Handle, count: *mut u32, out: *mut Process):
                nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2,
                nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses_v2,
                nvmlDeviceGetMPSComputeRunningProcesses_v3;
            Nvml nvml_processes::list => (device: Handle, count: *mut u32, out: *mut u32): nvmlDeviceGetAccountingPids;
            Nvml nvml_processes::accounting[pid] => (device: Handle, pid: u32, statistics: *mut c_void): nvmlDeviceGetAccountingStats;
            Nvml nvml_processes::accounting_v2[statistics] => (device: Handle, statistics: *mut u32): nvmlDeviceGetAccountingStats_v2;
            Nvml nvml_processes::described_list => (device: Handle, out: *mut ProcessDetails): nvmlDeviceGetRunningProcessDetailList;
            Nvml nvml_processes::described_list => (device: Handle, out: *mut Utilizations): nvmlDeviceGetProcessesUtilizationInfo;
            Nvml nvml_processes::utilization => (device: Handle, out: *mut UtilizationSample, count: *mut u32, since: u64):
                nvmlDeviceGetProcessUtilization;
            Nvml nvml_utilization::rates[device, rates] => (device: Handle, rates: *mut UtilizationRates): nvmlDeviceGetUtilizationRates;
        }
    };
}

pub(crate) use and_nvml;
