//! What vgpu-controller's environment has beyond vgpu-manager's ([`super::manager`] reads what they share).

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;

use crate::dialect::parse::switch;
use crate::error::Result;
use crate::request::{Claim, Request, Spill};
use crate::setting::{Said, Setting};

/// Reads `CUDA_MEMORY_OVERSUBSCRIBE`, `GPU_DEVICES_UUID` and `LOGGER_LEVEL`.
///
/// # Errors
/// A value that is not as documented. `LOGGER_LEVEL` is too common a name to be refused.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) -> Result<Claim> {
    let mut claim = Claim::default();
    if let Some(value) = env.get("CUDA_MEMORY_OVERSUBSCRIBE") {
        let setting = Setting::environment("CUDA_MEMORY_OVERSUBSCRIBE", value);
        if switch(&setting)? {
            claim.all.spill = Some(Said { value: Spill::Allowed, by: setting });
        }
    }
    if let Some(value) = env.get("GPU_DEVICES_UUID") {
        request.visible.order_by(value);
    }
    if request.log_level.is_none() {
        request.log_level = env.get("LOGGER_LEVEL").and_then(|level| LogLevel::of_controller(level.as_bytes()));
    }
    Ok(claim)
}
