//! NVIDIA's own variables: which GPUs a container is given, and how much of the driver.

use std::collections::BTreeMap;

use crate::devices::Visible;
use crate::error::Setting;
use crate::request::Request;

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
    request.driver_capabilities = env.get(CAPABILITIES).map(|value| Setting::environment(CAPABILITIES, value));
}
