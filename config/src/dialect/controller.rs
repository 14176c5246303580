//! vgpu-controller's environment, except for the variables that it shares with vgpu-manager ([`super::manager`]).

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;

use crate::dialect::parse::switch;
use crate::error::Result;
use crate::request::{GpuRequests, Request, Spill};
use crate::setting::{Setting, Sourced};

/// Reads `CUDA_MEMORY_OVERSUBSCRIBE`, `GPU_DEVICES_UUID` and `LOGGER_LEVEL`.
///
/// # Errors
/// A value that is not documented. An invalid `LOGGER_LEVEL` is ignored: other programs use that name, too.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) -> Result<GpuRequests> {
    let mut requests = GpuRequests::default();
    if let Some(value) = env.get("CUDA_MEMORY_OVERSUBSCRIBE") {
        let setting = Setting::environment("CUDA_MEMORY_OVERSUBSCRIBE", value);
        if switch(&setting)? {
            requests.all.spill = Some(Sourced { value: Spill::Allowed, setting });
        }
    }
    if let Some(value) = env.get("GPU_DEVICES_UUID") {
        request.visible.order_by(value);
    }
    if request.log_level.is_none() {
        request.log_level = env.get("LOGGER_LEVEL").and_then(|level| LogLevel::of_controller(level.as_bytes()));
    }
    Ok(requests)
}
