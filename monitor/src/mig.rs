//! MIG devices of a GPU. nvml-wrapper lacks these calls, so NVML's raw functions are used.

use std::ffi::{CStr, c_char};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlMemory_t};
use serde::{Deserialize, Serialize};
use vgpu_config::inventory::Mig;

use crate::nvml;

/// MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its entry in the inventory.
    #[serde(flatten)]
    pub mig: Mig,
    /// Profile, such as `1g.18gb`.
    pub profile: String,
    /// GPU instance, and compute instance within it.
    pub instance: (u32, u32),
}

/// Returns the MIG devices of a GPU, without those that NVML fails to describe.
pub fn partitions(initialized: &Nvml, gpu: &Device<'_>) -> Vec<Partition> {
    let Some(nvml::Raw { lib, .. }) = nvml::raw(initialized) else { return Vec::new() };
    // SAFETY: the handle is used while `gpu` is alive.
    let handle = unsafe { gpu.handle() };
    let mut max_count = 0;
    // SAFETY: NVML gave the handle, and the output is valid for writes.
    if lib.nvmlDeviceGetMaxMigDeviceCount.is_err() || unsafe { lib.nvmlDeviceGetMaxMigDeviceCount(handle, &raw mut max_count) } != 0 {
        return Vec::new();
    }
    (0..max_count).filter_map(|index| partition(&lib, handle, index)).collect()
}

fn partition(nvml: &NvmlLib, gpu: nvmlDevice_t, index: u32) -> Option<Partition> {
    let mut handle: nvmlDevice_t = std::ptr::null_mut();
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    let (mut gpu_instance, mut compute_instance) = (0, 0);
    nvml.nvmlDeviceGetMigDeviceHandleByIndex.as_ref().ok()?;
    nvml.nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    nvml.nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
    // SAFETY: NVML gave both handles, the second is used only after the first call succeeded, and all outputs are valid for writes.
    let succeeded = unsafe {
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, &raw mut handle) == 0
            && nvml.nvmlDeviceGetMemoryInfo(handle, &raw mut memory) == 0
            && nvml.nvmlDeviceGetGpuInstanceId(handle, &raw mut gpu_instance) == 0
            && nvml.nvmlDeviceGetComputeInstanceId(handle, &raw mut compute_instance) == 0
    };
    if !succeeded {
        return None;
    }
    // SAFETY: NVML gave the handle; the buffer has the length that is passed.
    let uuid = read_text(|to, length| unsafe { nvml.nvmlDeviceGetUUID(handle, to, length) })?;
    // SAFETY: as above.
    let name = read_text(|to, length| unsafe { nvml.nvmlDeviceGetName(handle, to, length) })?;
    // The name ends in the profile: `NVIDIA H200 MIG 1g.18gb`.
    let profile = name.rsplit_once(" MIG ").map_or(name.as_str(), |(_, profile)| profile).to_owned();
    Some(Partition { mig: Mig { index, uuid, memory: memory.total }, profile, instance: (gpu_instance, compute_instance) })
}

/// Returns the text that a function of NVML writes into a buffer of the given length.
fn read_text(call: impl FnOnce(*mut c_char, u32) -> u32) -> Option<String> {
    let mut buffer = [0_u8; 128];
    if call(buffer.as_mut_ptr().cast(), buffer.len() as u32) != 0 {
        return None;
    }
    Some(CStr::from_bytes_until_nul(&buffer).ok()?.to_str().ok()?.to_owned())
}
