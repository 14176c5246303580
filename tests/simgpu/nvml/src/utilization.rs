//! Utilization of a GPU and its processes.

use std::time::SystemTime;

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlProcessUtilizationSample_t, nvmlUtilization_t};
use simgpu_device::now_ns;

use crate::api::{Handle, ReturnCode, get, gpu, machine, put, put_list};

fn real_time_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

api! {
    fn nvmlDeviceGetUtilizationRates(handle: Handle, out: *mut nvmlUtilization_t) {
        let gpu = gpu(handle)?;
        let busy = machine()?.utilization(gpu);
        put(out, nvmlUtilization_t { gpu: busy, memory: busy / 4 })
    }

    fn nvmlDeviceGetProcessUtilization
        (handle: Handle, out: *mut nvmlProcessUtilizationSample_t, count: *mut u32, since: u64) {
        let gpu = gpu(handle)?;
        get(count)?;
        // Time stamps are of the real-time clock, in microseconds.
        let offset_ns = real_time_ns().saturating_sub(now_ns());
        let since_ns = (since * 1000).saturating_sub(offset_ns);
        let (end_ns, processes) = machine()?.processes_since(gpu, since_ns).ok_or(ReturnCode::NotFound)?;
        let samples = processes.into_iter().filter(|process| process.utilization > 0).map(|process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: (end_ns + offset_ns) / 1000,
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
