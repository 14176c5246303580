//! Memory of a GPU.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

use crate::api::{Handle, ReturnCode, get, gpu, machine, put};

/// `sizeof(nvmlMemory_v2_t) | 2 << 24`
const VERSION_2: u32 = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;

api! {
    fn nvmlDeviceGetMemoryInfo(handle: Handle, out: *mut nvmlMemory_t) {
        let memory = machine()?.memory(gpu(handle)?);
        put(out, nvmlMemory_t { total: memory.total, free: memory.free, used: memory.total - memory.free })
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, out: *mut nvmlMemory_v2_t) {
        let gpu = gpu(handle)?;
        let version = get(out.cast::<u32>())?;
        if version != VERSION_2 {
            return Err(ReturnCode::FunctionNotFound);
        }
        let memory = machine()?.memory(gpu);
        put(out, nvmlMemory_v2_t {
            version,
            total: memory.total,
            reserved: memory.reserved,
            free: memory.free,
            used: memory.used,
        })
    }

    // No driver has this one: it plays a newer driver.
    fn nvmlDeviceGetMemoryInfo_v3(handle: Handle, out: *mut nvmlMemory_t) {
        let memory = machine()?.memory(gpu(handle)?);
        put(out, nvmlMemory_t { total: memory.total, free: memory.free, used: memory.total - memory.free })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(handle: Handle, out: *mut nvmlBAR1Memory_t) {
        gpu(handle)?;
        put(out, nvmlBAR1Memory_t { bar1Total: 256 << 30, bar1Free: 256 << 30, bar1Used: 0 })
    }
}
