//! HAMi-core's environment, as its device plugin or a `docker run -e` sets it.

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;

use crate::dialect::parse::{cores, each_gpu, path, priority, said, switch};
use crate::error::Result;
use crate::quantity::HAMI;
use crate::request::{Claim, Request, Spill};
use crate::setting::{Said, Setting};

/// Reads `CUDA_DEVICE_MEMORY_LIMIT[_i]`, `CUDA_DEVICE_SM_LIMIT[_i]` and their company.
///
/// # Errors
/// The first value that is not as HAMi-core documents it.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) -> Result<Claim> {
    let mut claim = Claim::default();
    each_gpu(env, "CUDA_DEVICE_MEMORY_LIMIT", &mut claim, |gpu, setting| {
        gpu.memory = Some(said(setting, |text| HAMI.parse(text), HAMI.accepted)?);
        Ok(())
    })?;
    each_gpu(env, "CUDA_DEVICE_SM_LIMIT", &mut claim, |gpu, setting| {
        gpu.cores = cores(setting)?;
        Ok(())
    })?;
    let get = |key: &str| env.get(key).map(|value| Setting::environment(key, value));
    if let Some(setting) = get("CUDA_OVERSUBSCRIBE")
        && switch(&setting)?
    {
        claim.all.spill = Some(Said { value: Spill::Allowed, by: setting });
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
        let level = LogLevel::of_hami(setting.value.as_bytes()).ok_or_else(|| setting.refused("0 to 4"))?;
        // Ours wins, wherever it was read.
        request.log_level.get_or_insert(level);
    }
    if let Some(setting) = get("CUDA_DEVICE_MEMORY_SHARED_CACHE") {
        request.hami_cache = Some(said(setting, path, "an absolute path of at most 255 bytes")?);
    }
    Ok(claim)
}
