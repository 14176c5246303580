//! Parameters of shares: the opaque configuration that a claim or its DeviceClass has for this driver.

use k8s_openapi::api::resource::v1::DeviceAllocationConfiguration;
use serde::Deserialize;
use vgpu_config::spelling::{self, did_you_mean, nearest};

use crate::names::DRIVER;

/// `apiVersion` and `kind` of the parameters.
const TYPE: (&str, &str) = ("vgpu.io/v1", "ShareParameters");
/// Length of this driver's name divided by the most typos in it.
const DRIVER_TYPOS: usize = 4;
/// Source of a configuration that a DeviceClass has, which a claim's own overrides.
const FROM_CLASS: &str = "FromClass";

/// Parameters of a share. `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Compute time in percent while the GPU is otherwise idle.
    pub cores_soft: Option<u32>,
    /// 0 (high) or 1 (normal).
    pub priority: Option<u32>,
    /// Whether memory beyond the share spills to the host.
    pub oversubscribe: Option<bool>,
}

/// Parameters as they are written in a claim. A field that is not known is refused, as the claim would otherwise run without it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    api_version: String,
    kind: String,
    cores_soft: Option<u32>,
    priority: Option<u32>,
    oversubscribe: Option<bool>,
}

/// Returns the parameters of a request, which is `REQUEST` or `REQUEST/ALTERNATIVE`. Those of the claim override those of its class, and
/// later ones earlier ones. Configurations of other drivers are ignored.
///
/// # Errors
/// A configuration for this driver is not known. The message names what was expected.
pub fn of_request(all: &[DeviceAllocationConfiguration], request: &str) -> Result<Parameters, String> {
    let main = request.split('/').next().unwrap_or_default();
    let applies = |configuration: &&DeviceAllocationConfiguration| {
        let requests = configuration.requests.as_deref().unwrap_or_default();
        requests.is_empty() || requests.iter().any(|name| name == request || name == main)
    };
    let (of_class, of_claim): (Vec<_>, Vec<_>) = all.iter().filter(applies).partition(|configuration| configuration.source == FROM_CLASS);
    let mut merged = Parameters::default();
    for opaque in of_class.into_iter().chain(of_claim).filter_map(|configuration| configuration.opaque.as_ref()) {
        if opaque.driver != DRIVER {
            check_driver(&opaque.driver, request)?;
            continue;
        }
        let next = parse(&opaque.parameters.0).map_err(|error| format!("parameters of request {request} for {DRIVER}: {error}"))?;
        merged = Parameters {
            cores_soft: next.cores_soft.or(merged.cores_soft),
            priority: next.priority.or(merged.priority),
            oversubscribe: next.oversubscribe.or(merged.oversubscribe),
        };
    }
    Ok(merged)
}

/// Refuses the name of a driver that is almost this one's: its parameters would be ignored in silence.
fn check_driver(driver: &str, request: &str) -> Result<(), String> {
    match nearest(driver, [(DRIVER, DRIVER)].into_iter(), DRIVER_TYPOS) {
        Some(meant) => Err(format!("parameters of request {request}: unknown driver {driver:?}: {}", did_you_mean(meant))),
        None => Ok(()),
    }
}

/// Parses the parameters of one configuration.
fn parse(value: &serde_json::Value) -> Result<Parameters, String> {
    let written = Written::deserialize(value).map_err(|error| {
        let why = error.to_string();
        spelling::unknown_field(&why).unwrap_or(why)
    })?;
    let (version, kind) = TYPE;
    if (written.api_version.as_str(), written.kind.as_str()) != TYPE {
        return Err(format!("{} {}: expected {version} {kind}", written.api_version, written.kind));
    }
    let at_most = |name: &str, value: Option<u32>, min: u32, max: u32| match value {
        Some(value) if !(min..=max).contains(&value) => Err(format!("{name}: {value}: expected an integer from {min} to {max}")),
        value => Ok(value),
    };
    Ok(Parameters {
        cores_soft: at_most("coresSoft", written.cores_soft, 1, 100)?,
        priority: at_most("priority", written.priority, 0, 1)?,
        oversubscribe: written.oversubscribe,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parameters(list: Value) -> Result<Parameters, String> {
        of_request(&serde_json::from_value::<Vec<_>>(list).unwrap(), "gpu/large")
    }

    fn entry(source: &str, driver: &str, requests: &[&str], more: Value) -> Value {
        let mut parameters = json!({ "apiVersion": "vgpu.io/v1", "kind": "ShareParameters" });
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "source": source, "requests": requests, "opaque": { "driver": driver, "parameters": parameters } })
    }

    #[test]
    fn parameters_of_the_claim_override_those_of_its_class() {
        let merged = parameters(json!([
            entry("FromClaim", "gpu.vgpu", &["gpu"], json!({ "priority": 0 })),
            entry("FromClass", "gpu.vgpu", &[], json!({ "priority": 1, "oversubscribe": true })),
            entry("FromClaim", "gpu.vgpu", &["other"], json!({ "coresSoft": 7 })),
            entry("FromClaim", "gpu.vgpu", &["gpu/large"], json!({ "coresSoft": 50 })),
            entry("FromClaim", "gpu.nvidia.com", &[], json!({ "sharing": {} })),
        ]));
        assert_eq!(merged.unwrap(), Parameters { cores_soft: Some(50), priority: Some(0), oversubscribe: Some(true) });
        assert_eq!(parameters(json!([])).unwrap(), Parameters::default());
    }

    #[test]
    fn unknown_parameters_are_refused() {
        for (more, expected) in [
            (json!({ "memory": 50 }), "unknown field `memory`, expected one of"),
            (json!({ "softCores": 50 }), "for gpu.vgpu: unknown field `softCores`: did you mean coresSoft?"),
            (json!({ "cores_soft": 50 }), "unknown field `cores_soft`: did you mean coresSoft?"),
            (json!({ "oversubscribed": true }), "unknown field `oversubscribed`: did you mean oversubscribe?"),
            (json!({ "priority": 2 }), "priority: 2: expected an integer from 0 to 1"),
            (json!({ "coresSoft": 101 }), "coresSoft: 101: expected an integer from 1 to 100"),
            (json!({ "oversubscribe": "yes" }), "expected a boolean"),
            (json!({ "kind": "GpuConfig" }), "vgpu.io/v1 GpuConfig: expected vgpu.io/v1 ShareParameters"),
        ] {
            let error = parameters(json!([entry("FromClaim", "gpu.vgpu", &[], more)])).unwrap_err();
            assert!(error.contains(expected) && error.contains("request gpu/large"), "{error}");
        }
    }

    #[test]
    fn parameters_for_a_driver_that_is_almost_this_one_are_refused() {
        for driver in ["gpu-vgpu", "vgpu.gpu", "gpu.vpgu"] {
            let error = parameters(json!([entry("FromClaim", driver, &[], json!({ "priority": 0 }))])).unwrap_err();
            assert!(error.ends_with(&format!("request gpu/large: unknown driver \"{driver}\": did you mean gpu.vgpu?")), "{error}");
        }
        assert!(parameters(json!([entry("FromClaim", "gpu.amd.com", &[], json!({}))])).is_ok());
    }
}
