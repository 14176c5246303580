//! The pieces of a GPU in MIG mode. nvml-wrapper has no calls for them, so NVML is asked directly.

use std::ffi::{CStr, c_char};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlMemory_t};
use serde::{Deserialize, Serialize};
use vgpu_config::inventory::Mig;

/// A MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// As an inventory has it.
    #[serde(flatten)]
    pub mig: Mig,
    /// Such as `1g.18gb`.
    pub profile: String,
    /// Its GPU instance and its compute instance there.
    pub instance: (u32, u32),
}

/// The MIG devices of a GPU; those that NVML cannot tell of are left out. `_initialized` is what keeps NVML usable meanwhile.
pub fn partitions(_initialized: &Nvml, gpu: &Device<'_>) -> Vec<Partition> {
    // SAFETY: it is loaded already; this is one more hold of it.
    let Ok(nvml) = (unsafe { NvmlLib::new("libnvidia-ml.so.1") }) else { return Vec::new() };
    // SAFETY: the handle is used while `gpu` is there.
    let handle = unsafe { gpu.handle() };
    let mut most = 0;
    // SAFETY: the handle is NVML's own, and there is room for the answer.
    if nvml.nvmlDeviceGetMaxMigDeviceCount.is_err() || unsafe { nvml.nvmlDeviceGetMaxMigDeviceCount(handle, &raw mut most) } != 0 {
        return Vec::new();
    }
    (0..most).filter_map(|index| partition(&nvml, handle, index)).collect()
}

fn partition(nvml: &NvmlLib, gpu: nvmlDevice_t, index: u32) -> Option<Partition> {
    let mut handle: nvmlDevice_t = std::ptr::null_mut();
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    let (mut gpu_instance, mut compute_instance) = (0, 0);
    nvml.nvmlDeviceGetMigDeviceHandleByIndex.as_ref().ok()?;
    nvml.nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    nvml.nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
    // SAFETY: each handle is NVML's own, the second only used if it was given, and there is room for every answer.
    let all = unsafe {
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, &raw mut handle) == 0
            && nvml.nvmlDeviceGetMemoryInfo(handle, &raw mut memory) == 0
            && nvml.nvmlDeviceGetGpuInstanceId(handle, &raw mut gpu_instance) == 0
            && nvml.nvmlDeviceGetComputeInstanceId(handle, &raw mut compute_instance) == 0
    };
    if !all {
        return None;
    }
    // SAFETY: the handle was given; the texts are as long as is said.
    let uuid = text(|to, length| unsafe { nvml.nvmlDeviceGetUUID(handle, to, length) })?;
    // SAFETY: the same.
    let name = text(|to, length| unsafe { nvml.nvmlDeviceGetName(handle, to, length) })?;
    // The name ends in the profile: `NVIDIA H200 MIG 1g.18gb`.
    let profile = name.rsplit_once(" MIG ").map_or(name.as_str(), |(_, profile)| profile).to_owned();
    Some(Partition { mig: Mig { index, uuid, memory: memory.total }, profile, instance: (gpu_instance, compute_instance) })
}

/// A text that NVML writes into a buffer.
fn text(ask: impl FnOnce(*mut c_char, u32) -> u32) -> Option<String> {
    let mut buffer = [0_u8; 128];
    if ask(buffer.as_mut_ptr().cast(), buffer.len() as u32) != 0 {
        return None;
    }
    Some(CStr::from_bytes_until_nul(&buffer).ok()?.to_str().ok()?.to_owned())
}
