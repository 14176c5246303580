//! Processes on a GPU.

use nvml_wrapper_sys::bindings::{nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};
use simgpu_device::Process;

use crate::api::{Handle, NvmlResult, ReturnCode, get, gpu, machine, put, put_list};

/// Instance id that NVML reports without MIG.
const NO_INSTANCE: u32 = u32::MAX;
const DETAIL_LIST: u32 = size_of::<nvmlProcessDetailList_t>() as u32 | 1 << 24;

fn list<T>(handle: Handle, count: *mut u32, out: *mut T, make: fn(Process) -> T) -> NvmlResult {
    let gpu = gpu(handle)?;
    get(count)?;
    put_list(count, out, machine()?.processes(gpu).into_iter().map(make).collect())
}

fn with_instances(process: Process) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t { pid: process.pid, usedGpuMemory: process.used, gpuInstanceId: NO_INSTANCE, computeInstanceId: NO_INSTANCE }
}

api! {
    fn nvmlDeviceGetComputeRunningProcesses(handle: Handle, count: *mut u32, out: *mut nvmlProcessInfo_v1_t) {
        list(handle, count, out, |process| nvmlProcessInfo_v1_t { pid: process.pid, usedGpuMemory: process.used })
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3
        (handle: Handle, count: *mut u32, out: *mut nvmlProcessInfo_v2_t) { list(handle, count, out, with_instances) }

    fn nvmlDeviceGetGraphicsRunningProcesses | nvmlDeviceGetGraphicsRunningProcesses_v2 | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses | nvmlDeviceGetMPSComputeRunningProcesses_v2
        | nvmlDeviceGetMPSComputeRunningProcesses_v3
        (handle: Handle, count: *mut u32, _out: *mut nvmlProcessInfo_v2_t) {
        gpu(handle)?;
        get(count)?;
        put(count, 0)
    }

    fn nvmlDeviceGetRunningProcessDetailList(handle: Handle, out: *mut nvmlProcessDetailList_t) {
        let gpu = gpu(handle)?;
        let request = get(out)?;
        if request.version != DETAIL_LIST {
            return Err(ReturnCode::VersionMismatch);
        }
        let processes = if request.mode == 0 { machine()?.processes(gpu) } else { Vec::new() };
        let details = processes.into_iter().map(|process| nvmlProcessDetail_v1_t {
            pid: process.pid,
            usedGpuMemory: process.used,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
            usedGpuCcProtectedMemory: 0,
        });
        // SAFETY: `out` was read above, so it is not null and points to a list.
        put_list(unsafe { &raw mut (*out).numProcArrayEntries }, request.procArray, details.collect())
    }
}
