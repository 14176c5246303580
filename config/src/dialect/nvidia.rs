//! NVIDIA's own variables: the GPUs and the driver capabilities of a container.

use std::collections::BTreeMap;

use crate::devices::Visible;
use crate::request::Request;
use crate::setting::Setting;

/// The container's GPUs.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// The container's driver capabilities.
pub const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// Reads `NVIDIA_VISIBLE_DEVICES` and `NVIDIA_DRIVER_CAPABILITIES`. The NVIDIA Container Toolkit validates them, so no value is refused.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) {
    if let Some(value) = env.get(VISIBLE) {
        request.visible = Visible::parse(value);
    }
    let implied = || implies_all_capabilities(env).then_some("all");
    let capabilities = env.get(CAPABILITIES).map(String::as_str).or_else(implied);
    request.driver_capabilities = capabilities.map(|value| Setting::environment(CAPABILITIES, value));
}

/// Returns whether the toolkit gives all capabilities to an image without [`CAPABILITIES`]. It does so for images from before that
/// variable, which it recognises by `CUDA_VERSION` without `NVIDIA_REQUIRE_CUDA`.
fn implies_all_capabilities(env: &BTreeMap<String, String>) -> bool {
    let is_set = |key| env.get(key).is_some_and(|value| !value.is_empty());
    is_set("CUDA_VERSION") && !is_set("NVIDIA_REQUIRE_CUDA")
}
