//! ResourceClaimTemplates for the GPU requests of containers.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use serde_json::{Map, Value, json};
use vgpu_config::dialect::annotations;

use crate::names::{CORES, DEVICE_CLASS, DRIVER, MEMORY};
use crate::quantity;
use crate::webhook::resources::{GpuRequest, Memory};

/// Maximum number of alternatives in a device request, set by Kubernetes.
const MAX_ALTERNATIVES: usize = 8;
/// Label that names the creator of a template.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] for the webhook's templates.
const MANAGER: &str = "vgpu-webhook";

/// Which GPUs the claims of a pod may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// CEL expressions that all match.
    pub selectors: Vec<String>,
    /// True if several GPUs of a claim must have the same NUMA node.
    pub is_numa_bound: bool,
}

/// Returns the specification of a claim for `request`, restricted to GPUs that `placement` allows. `sizes` are the memory sizes of the
/// cluster's GPUs in bytes. A claim's capacity is an amount, so a percentage becomes one amount for each size.
///
/// # Errors
/// The memory is a percentage, and the cluster's GPUs have no known size or too many sizes.
pub fn claim_spec(request: &GpuRequest, placement: &Placement, sizes: &BTreeSet<u64>) -> Result<Value, String> {
    let selectors = &placement.selectors;
    let exactly = |bytes| json!({ "name": "gpu", "exactly": device_request(request, selectors, bytes) });
    let requested = match request.memory {
        Memory::Whole => exactly(None),
        Memory::Mib(mib) => exactly(Some(mib << 20)),
        Memory::Percent(percent) => {
            let part = |size: &u64| (u128::from(*size).saturating_mul(u128::from(percent)) / 100) as u64;
            match sizes.len() {
                0 => return Err(percentage_error("no GPU with known memory in the cluster")),
                1 => exactly(sizes.first().map(part)),
                2..=MAX_ALTERNATIVES => {
                    let alternative = |(index, size): (usize, &u64)| alternative(request, selectors, index, *size, part(size));
                    json!({ "name": "gpu", "firstAvailable": sizes.iter().enumerate().map(alternative).collect::<Vec<_>>() })
                }
                many => {
                    let found = format!("GPUs of {many} memory sizes in the cluster, at most {MAX_ALTERNATIVES} supported");
                    return Err(percentage_error(&found));
                }
            }
        }
    };
    let mut devices = Map::new();
    devices.insert("requests".to_owned(), json!([requested]));
    if request.count > 1 {
        // Otherwise several shares of one GPU would satisfy a request for several GPUs.
        let mut constraints = vec![json!({ "requests": ["gpu"], "distinctAttribute": format!("{DRIVER}/uuid") })];
        if placement.is_numa_bound {
            constraints.push(json!({ "requests": ["gpu"], "matchAttribute": format!("{DRIVER}/numaNode") }));
        }
        devices.insert("constraints".to_owned(), json!(constraints));
    }
    Ok(json!({ "devices": devices }))
}

fn percentage_error(found: &str) -> String {
    format!("{}: {found}: expected {} in MiB", annotations::MEMORY_PERCENT, annotations::MEMORY)
}

/// Returns the request of devices with this amount of memory; `None` for all of it.
fn device_request(request: &GpuRequest, selectors: &[String], bytes: Option<u64>) -> Map<String, Value> {
    let mut capacity = Map::new();
    if let Some(bytes) = bytes {
        capacity.insert(MEMORY.to_owned(), json!(quantity::format_mib(bytes)));
    }
    if let Some(cores) = request.cores {
        capacity.insert(CORES.to_owned(), json!(cores.to_string()));
    }
    let fixed = [("deviceClassName", json!(DEVICE_CLASS)), ("allocationMode", json!("ExactCount")), ("count", json!(request.count))];
    let mut result: Map<_, _> = fixed.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
    if !capacity.is_empty() {
        result.insert("capacity".to_owned(), json!({ "requests": capacity }));
    }
    if !selectors.is_empty() {
        let selectors: Vec<Value> = selectors.iter().map(|expression| json!({ "cel": { "expression": expression } })).collect();
        result.insert("selectors".to_owned(), json!(selectors));
    }
    result
}

/// Returns the alternative for GPUs whose memory is exactly `size` bytes.
fn alternative(request: &GpuRequest, selectors: &[String], index: usize, size: u64, bytes: u64) -> Value {
    let size_matches = format!("device.capacity[\"{DRIVER}\"].{MEMORY}.compareTo(quantity(\"{}\")) == 0", quantity::format_mib(size));
    let mut result = device_request(request, &[selectors, &[size_matches]].concat(), Some(bytes));
    result.insert("name".to_owned(), json!(format!("size-{index}")));
    Value::Object(result)
}

/// Returns the template for a claim specification. Its name is a hash of the specification.
#[must_use]
pub fn claim_template(spec: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": { "name": format!("vgpu-{:016x}", fingerprint(&spec.to_string())), "labels": { MANAGED_BY: MANAGER } },
        "spec": { "spec": spec },
    })
}

/// Returns true if a template of the cluster is as the webhook created it: `wanted`, labelled as its own, and neither owned by another
/// object nor being deleted.
#[must_use]
pub fn is_as_created(found: &ResourceClaimTemplate, wanted: &ResourceClaimTemplate) -> bool {
    let metadata = &found.metadata;
    let is_ours = metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == MANAGER);
    let is_free = metadata.owner_references.as_ref().is_none_or(Vec::is_empty) && metadata.deletion_timestamp.is_none();
    is_ours && is_free && found.spec == wanted.spec
}

/// Returns the FNV-1a hash of a text. Unlike the standard library's hash, it is the same in every release.
#[must_use]
pub fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: u64, memory: Memory, cores: Option<u64>) -> GpuRequest {
        GpuRequest { count, memory, cores }
    }

    fn request(gpus: &GpuRequest, sizes: &[u64]) -> Result<Value, String> {
        claim_spec(gpus, &Placement::default(), &sizes.iter().copied().collect()).map(|spec| spec["devices"]["requests"][0].clone())
    }

    #[test]
    fn amounts_become_capacity_requests() {
        let some = request(&gpus(1, Memory::Mib(3000), Some(30)), &[]).unwrap();
        assert_eq!(some["exactly"]["capacity"], json!({ "requests": { "memory": "3000Mi", "cores": "30" } }));
        let whole = request(&gpus(1, Memory::Whole, None), &[]).unwrap();
        assert_eq!(whole["exactly"], json!({ "deviceClassName": "gpu.vgpu", "allocationMode": "ExactCount", "count": 1 }));
    }

    #[test]
    fn percentages_become_one_alternative_for_each_gpu_size() {
        let half = gpus(1, Memory::Percent(50), None);
        assert_eq!(request(&half, &[24 << 30]).unwrap()["exactly"]["capacity"]["requests"]["memory"], "12Gi");
        let two = request(&half, &[24 << 30, 80 << 30]).unwrap();
        assert_eq!(two["firstAvailable"][1]["name"], "size-1");
        assert_eq!(
            two["firstAvailable"][1]["selectors"][0]["cel"]["expression"],
            r#"device.capacity["gpu.vgpu"].memory.compareTo(quantity("80Gi")) == 0"#
        );
        assert!(request(&half, &[]).unwrap_err().contains("no GPU with known memory"));
        let many: Vec<u64> = (1..=9).map(|size| size << 30).collect();
        assert!(request(&half, &many).unwrap_err().contains("9 memory sizes"));
    }

    #[test]
    fn several_gpus_must_have_distinct_uuids() {
        let placement = Placement { selectors: vec!["x".to_owned()], is_numa_bound: true };
        let spec = claim_spec(&gpus(2, Memory::Whole, None), &placement, &BTreeSet::new()).unwrap();
        assert_eq!(spec["devices"]["constraints"][0]["distinctAttribute"], "gpu.vgpu/uuid");
        assert_eq!(spec["devices"]["constraints"][1]["matchAttribute"], "gpu.vgpu/numaNode");
        assert_eq!(spec["devices"]["requests"][0]["exactly"]["selectors"], json!([{ "cel": { "expression": "x" } }]));
    }

    #[test]
    fn template_names_are_hashes_of_their_contents() {
        let name = |spec: Value| claim_template(&spec)["metadata"]["name"].clone();
        assert_eq!(name(json!({ "a": 1 })), name(json!({ "a": 1 })));
        assert_ne!(name(json!({ "a": 1 })), name(json!({ "a": 2 })));
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
    }
}
