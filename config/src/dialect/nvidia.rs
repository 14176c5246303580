//! NVIDIA's own variables: which GPUs a container is given, and how much of the driver.

use std::collections::BTreeMap;

use crate::devices::Visible;
use crate::request::Request;
use crate::setting::Setting;

/// The GPUs that the container is given.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// The parts of the driver that it is given.
pub const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// Reads `NVIDIA_VISIBLE_DEVICES` and `NVIDIA_DRIVER_CAPABILITIES`. What they mean is the NVIDIA Container Toolkit's business,
/// so nothing is refused here.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) {
    if let Some(value) = env.get(VISIBLE) {
        request.visible = Visible::parse(value);
    }
    let all = || says_nothing_and_gets_all(env).then_some("all");
    let capabilities = env.get(CAPABILITIES).map(String::as_str).or_else(all);
    request.driver_capabilities = capabilities.map(|value| Setting::environment(CAPABILITIES, value));
}

/// Whether the toolkit gives the whole driver to an image that does not say which parts it wants: to those of before the variable, which
/// it tells by these two.
fn says_nothing_and_gets_all(env: &BTreeMap<String, String>) -> bool {
    let said = |key| env.get(key).is_some_and(|value| !value.is_empty());
    said("CUDA_VERSION") && !said("NVIDIA_REQUIRE_CUDA")
}
