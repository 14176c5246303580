//! Utilization of a GPU and its processes.

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlProcessUtilizationSample_t, nvmlUtilization_t};
use simgpu_device::now_ns;

use crate::api::{Handle, ReturnCode, get, gpu, machine, put, put_list};

api! {
    fn nvmlDeviceGetUtilizationRates(handle: Handle, out: *mut nvmlUtilization_t) {
        let gpu = gpu(handle)?;
        let busy = machine()?.utilization(gpu);
        put(out, nvmlUtilization_t { gpu: busy, memory: busy / 4 })
    }

    fn nvmlDeviceGetProcessUtilization
        (handle: Handle, out: *mut nvmlProcessUtilizationSample_t, count: *mut u32, _since: u64) {
        let gpu = gpu(handle)?;
        get(count)?;
        let now = now_ns() / 1000;
        let samples = machine()?.processes(gpu).into_iter().map(|process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: now,
            smUtil: process.utilization,
            memUtil: process.utilization / 4,
            encUtil: 0,
            decUtil: 0,
        });
        let samples = samples.collect::<Vec<_>>();
        if samples.is_empty() {
            return Err(ReturnCode::NotFound);
        }
        put_list(count, out, samples)
    }

    fn nvmlDeviceGetFieldValues(handle: Handle, count: i32, values: *mut nvmlFieldValue_t) {
        gpu(handle)?;
        if count <= 0 || values.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        for index in 0..count as usize {
            // SAFETY: by NVML's contract `values` has `count` elements.
            unsafe { (*values.add(index)).nvmlReturn = ReturnCode::NotSupported as u32 };
        }
        Ok(())
    }
}
