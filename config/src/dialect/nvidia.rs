//! NVIDIA's own variables: the GPUs and the driver capabilities of a container.

use std::collections::BTreeMap;

use crate::devices::Visible;
use crate::request::Request;
use crate::setting::Setting;

/// The container's GPUs.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// The container's GPUs where Docker Swarm assigns them and the toolkit's `swarm-resource` has this name, its documented one.
const SWARM: &str = "DOCKER_RESOURCE_GPU";
/// The container's driver capabilities.
pub const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// Reads `NVIDIA_VISIBLE_DEVICES` and `NVIDIA_DRIVER_CAPABILITIES`. The NVIDIA Container Toolkit validates them, so no value is refused.
pub fn read(env: &BTreeMap<String, String>, request: &mut Request) {
    request.visible = visible(env);
    let implied = || is_legacy(env).then_some("all");
    let capabilities = env.get(CAPABILITIES).map(String::as_str).or_else(implied);
    request.driver_capabilities = capabilities.map(|value| Setting::environment(CAPABILITIES, value));
}

/// Returns the GPUs that the toolkit gives a container with these variables: those of the first one that names any. An image from before
/// [`VISIBLE`] gets all GPUs without it (`DevicesFromEnvvars` in the toolkit's `internal/config/image`).
#[must_use]
pub fn visible(env: &BTreeMap<String, String>) -> Visible {
    let mut named = [VISIBLE, SWARM].iter().filter_map(|key| env.get(*key)).map(|value| Visible::parse(value));
    let unnamed = || match env.get(VISIBLE) {
        Some(value) => Visible::parse(value),
        None if is_legacy(env) => Visible::parse("all"),
        None => Visible::default(),
    };
    named.find(Visible::has_gpus).unwrap_or_else(unnamed)
}

/// Returns whether the toolkit takes an image for one from before [`VISIBLE`] and [`CAPABILITIES`], by `CUDA_VERSION` without
/// `NVIDIA_REQUIRE_CUDA`. Without these variables such a container has all GPUs and all capabilities.
fn is_legacy(env: &BTreeMap<String, String>) -> bool {
    let is_set = |key| env.get(key).is_some_and(|value| !value.is_empty());
    is_set("CUDA_VERSION") && !is_set("NVIDIA_REQUIRE_CUDA")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::VisibleDevices::{All, Nothing, Unset};

    #[test]
    fn visible_gpus_are_those_of_the_toolkit() {
        let legacy = ("CUDA_VERSION", "8.0");
        for (description, variables, expected) in [
            ("none", vec![], Unset),
            ("all", vec![(VISIBLE, "all")], All),
            ("an old image", vec![legacy], All),
            ("an old image without a GPU", vec![legacy, (VISIBLE, "void")], Nothing),
            ("a newer image", vec![legacy, ("NVIDIA_REQUIRE_CUDA", "cuda>=9.0")], Unset),
            ("Swarm's", vec![(VISIBLE, "none"), (SWARM, "all")], All),
        ] {
            let env = variables.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            assert_eq!(visible(&env).devices, expected, "{description}");
        }
    }
}
