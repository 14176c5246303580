//! vgpu-manager's environment, and the variables that vgpu-controller shares with it.

use std::collections::BTreeMap;

use crate::devices;
use crate::dialect::parse::{cores, for_each_gpu, memory, parse, switch};
use crate::error::Result;
use crate::quantity::{MANAGER, number};
use crate::request::{GpuRequests, Request, Spill};
use crate::setting::{Setting, Sourced};

/// Reads `CUDA_MEM_LIMIT[_i]`, `CUDA_MEM_RATIO[_i]`, `CUDA_MEM_OVERSOLD[_i]`, `CUDA_CORE_LIMIT[_i]`, `CUDA_CORE_SOFT_LIMIT[_i]`
/// and `MANAGER_VISIBLE_DEVICES`.
///
/// # Errors
/// The first value that vgpu-manager does not document.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) -> Result<GpuRequests> {
    let mut requests = GpuRequests::default();
    for_each_gpu(env, "CUDA_MEM_LIMIT", &mut requests, |gpu, setting| {
        gpu.memory = Some(memory(setting, &MANAGER)?);
        Ok(())
    })?;
    for_each_gpu(env, "CUDA_MEM_OVERSOLD", &mut requests, |gpu, setting| {
        gpu.spill = switch(&setting)?.then_some(Sourced { value: Spill::Allowed, setting });
        Ok(())
    })?;
    for_each_gpu(env, "CUDA_MEM_RATIO", &mut requests, |gpu, setting| {
        let ratio = parse(setting, ratio, "a factor from 1 to 100, such as 2 or 1.5")?;
        if ratio.value > 1000 {
            gpu.spill = Some(Sourced { value: Spill::Ratio(ratio.value), setting: ratio.setting });
        }
        Ok(())
    })?;
    for_each_gpu(env, "CUDA_CORE_LIMIT", &mut requests, |gpu, setting| {
        gpu.cores = cores(setting, request)?;
        Ok(())
    })?;
    for_each_gpu(env, "CUDA_CORE_SOFT_LIMIT", &mut requests, |gpu, setting| {
        gpu.cores_soft = cores(setting, request)?;
        Ok(())
    })?;
    let get = |key: &str| env.get(key).map(|value| Setting::environment(key, value));
    if let Some(setting) = get("DISABLE_VGPU_CONTROL")
        && switch(&setting)?
    {
        request.opt_out = Some(setting);
    }
    if let Some(setting) = get("MANAGER_VISIBLE_DEVICES") {
        request.visible.order_by(&setting.value);
    } else {
        let each = (0..).map_while(|index| env.get(&format!("MANAGER_VISIBLE_DEVICE_{index}")));
        let order: Vec<&str> = each.map(String::as_str).filter(|name| devices::uuid(name).is_some()).collect();
        request.visible.order_by(&order.join(","));
    }
    Ok(requests)
}

/// Parses a decimal factor from 1 to 100, in thousandths.
fn ratio(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_fraction = fraction.len() <= 3 && !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let thousandths = format!("{fraction:0<3}");
    let value = number(whole)?.checked_mul(1000)?.checked_add(thousandths.parse().ok()?)?;
    (is_fraction && (1000..=100_000).contains(&value)).then_some(value)
}
