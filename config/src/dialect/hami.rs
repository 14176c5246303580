//! HAMi-core's environment, as set by its device plugin or by `docker run -e`.

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;

use crate::dialect::parse::{cores, for_each_gpu, memory, parse, path, priority, switch};
use crate::error::Result;
use crate::quantity::HAMI;
use crate::request::{GpuRequests, Request, Spill};
use crate::setting::{Setting, Sourced};

/// Reads `CUDA_DEVICE_MEMORY_LIMIT[_i]`, `CUDA_DEVICE_SM_LIMIT[_i]` and HAMi-core's other variables.
///
/// # Errors
/// The first value that HAMi-core does not document.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) -> Result<GpuRequests> {
    let mut requests = GpuRequests::default();
    for_each_gpu(env, "CUDA_DEVICE_MEMORY_LIMIT", &mut requests, |gpu, setting| {
        gpu.memory = Some(memory(setting, &HAMI)?);
        Ok(())
    })?;
    for_each_gpu(env, "CUDA_DEVICE_SM_LIMIT", &mut requests, |gpu, setting| {
        gpu.cores = cores(setting, request)?;
        Ok(())
    })?;
    let get = |key: &str| env.get(key).map(|value| Setting::environment(key, value));
    if let Some(setting) = get("CUDA_OVERSUBSCRIBE")
        && switch(&setting)?
    {
        requests.all.spill = Some(Sourced { value: Spill::Allowed, setting });
    }
    if let Some(setting) = get("CUDA_TASK_PRIORITY") {
        request.demote(priority(setting)?);
    }
    if let Some(setting) = get("CUDA_DISABLE_CONTROL")
        && switch(&setting)?
    {
        request.opt_out = Some(setting);
    }
    if let Some(setting) = get("GPU_CORE_UTILIZATION_POLICY") {
        match setting.value.to_ascii_lowercase().as_str() {
            "default" | "force" => {}
            "disable" => request.cores_opt_out = Some(setting),
            _ => return Err(setting.refused("default, force or disable")),
        }
    }
    if let Some(setting) = get("LIBCUDA_LOG_LEVEL") {
        let level = LogLevel::of_hami(setting.value.as_bytes()).ok_or_else(|| setting.refused("an integer from 0 to 4"))?;
        // VGPU_LOG has precedence.
        request.log_level.get_or_insert(level);
    }
    if let Some(setting) = get("CUDA_DEVICE_MEMORY_SHARED_CACHE") {
        request.hami_cache = Some(parse(setting, path, "an absolute path of at most 255 bytes")?);
    }
    Ok(requests)
}
