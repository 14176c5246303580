//! What a container asks for as a ResourceClaimTemplate.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::names::{DEVICE_CLASS, DRIVER};
use crate::quantity;
use crate::webhook::resources::{GpuRequest, Memory};

/// Most alternatives that a request may have.
const MAX_ALTERNATIVES: usize = 8;

/// The specification of claims for `ask`, from GPUs that `selectors` choose. `sizes` are the memories of the cluster's GPUs in bytes, by
/// which percentages are reckoned: a claim is for an amount.
///
/// # Errors
/// The memory is in percent of GPUs that are not known, or that are of too many kinds.
pub fn claim_spec(ask: &GpuRequest, selectors: &[String], sizes: &BTreeSet<u64>) -> Result<Value, String> {
    let one = |bytes: Option<u64>, more: Option<String>| {
        let mut requests = serde_json::Map::new();
        if let Some(bytes) = bytes {
            requests.insert("memory".to_owned(), json!(quantity::format_mib(bytes)));
        }
        if let Some(cores) = ask.cores {
            requests.insert("cores".to_owned(), json!(cores.to_string()));
        }
        let mut request = json!({ "deviceClassName": DEVICE_CLASS, "allocationMode": "ExactCount", "count": ask.count });
        if !requests.is_empty() {
            request["capacity"] = json!({ "requests": requests });
        }
        let selectors: Vec<Value> =
            selectors.iter().cloned().chain(more).map(|expression| json!({ "cel": { "expression": expression } })).collect();
        if !selectors.is_empty() {
            request["selectors"] = json!(selectors);
        }
        request
    };
    let request = match ask.memory {
        Memory::Whole => json!({ "name": "gpu", "exactly": one(None, None) }),
        Memory::Mib(mib) => json!({ "name": "gpu", "exactly": one(Some(mib << 20), None) }),
        Memory::Percent(percent) => {
            let part = |size: &u64| (u128::from(*size) * u128::from(percent) / 100) as u64;
            match sizes.len() {
                0 => return Err("nvidia.com/gpumem-percentage: no GPU is known whose memory it could be a part of: accepted is nvidia.com/gpumem, in MiB".to_owned()),
                1 => json!({ "name": "gpu", "exactly": one(sizes.first().map(part), None) }),
                2..=MAX_ALTERNATIVES => {
                    let alternative = |(nth, size): (usize, &u64)| {
                        let of_size = format!("device.capacity[\"{DRIVER}\"].memory.compareTo(quantity(\"{}\")) == 0", quantity::format_mib(*size));
                        let mut request = one(Some(part(size)), Some(of_size));
                        request["name"] = json!(format!("size-{nth}"));
                        request
                    };
                    json!({ "name": "gpu", "firstAvailable": sizes.iter().enumerate().map(alternative).collect::<Vec<_>>() })
                }
                many => return Err(format!("nvidia.com/gpumem-percentage: the cluster's GPUs have {many} sizes of memory, more than {MAX_ALTERNATIVES}: accepted is nvidia.com/gpumem, in MiB")),
            }
        }
    };
    let mut devices = json!({ "requests": [request] });
    if ask.count > 1 {
        // Otherwise several shares of one GPU could be what is given for several GPUs.
        devices["constraints"] = json!([{ "requests": ["gpu"], "distinctAttribute": format!("{DRIVER}/uuid") }]);
    }
    Ok(json!({ "devices": devices }))
}

/// The template for a specification, named by its contents.
#[must_use]
pub fn claim_template(spec: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": { "name": format!("vgpu-{:016x}", fingerprint(&spec.to_string())), "labels": { "app.kubernetes.io/managed-by": "vgpu-webhook" } },
        "spec": { "spec": spec },
    })
}

/// FNV-1a: the same for all time, which the standard library's hash is not.
#[must_use]
pub fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(count: u64, memory: Memory, cores: Option<u64>) -> GpuRequest {
        GpuRequest { count, memory, cores }
    }

    fn request(ask: &GpuRequest, sizes: &[u64]) -> Result<Value, String> {
        claim_spec(ask, &[], &sizes.iter().copied().collect()).map(|spec| spec["devices"]["requests"][0].clone())
    }

    #[test]
    fn amounts_are_capacities() {
        let some = request(&ask(1, Memory::Mib(3000), Some(30)), &[]).unwrap();
        assert_eq!(some["exactly"]["capacity"], json!({ "requests": { "memory": "3000Mi", "cores": "30" } }));
        let whole = request(&ask(1, Memory::Whole, None), &[]).unwrap();
        assert_eq!(whole["exactly"], json!({ "deviceClassName": "gpu.vgpu", "allocationMode": "ExactCount", "count": 1 }));
    }

    #[test]
    fn percent_is_of_each_kind_of_gpu_that_there_is() {
        let half = ask(1, Memory::Percent(50), None);
        assert_eq!(request(&half, &[24 << 30]).unwrap()["exactly"]["capacity"]["requests"]["memory"], "12Gi");
        let two = request(&half, &[24 << 30, 80 << 30]).unwrap();
        assert_eq!(two["firstAvailable"][1]["name"], "size-1");
        assert_eq!(
            two["firstAvailable"][1]["selectors"][0]["cel"]["expression"],
            r#"device.capacity["gpu.vgpu"].memory.compareTo(quantity("80Gi")) == 0"#
        );
        assert!(request(&half, &[]).unwrap_err().contains("no GPU is known"));
        let many: Vec<u64> = (1..=9).map(|size| size << 30).collect();
        assert!(request(&half, &many).unwrap_err().contains("9 sizes"));
    }

    #[test]
    fn several_gpus_are_different_ones() {
        let spec = claim_spec(&ask(2, Memory::Whole, None), &["x".to_owned()], &BTreeSet::new()).unwrap();
        assert_eq!(spec["devices"]["constraints"][0]["distinctAttribute"], "gpu.vgpu/uuid");
        assert_eq!(spec["devices"]["requests"][0]["exactly"]["selectors"], json!([{ "cel": { "expression": "x" } }]));
    }

    #[test]
    fn templates_are_named_by_their_contents() {
        let name = |spec: Value| claim_template(&spec)["metadata"]["name"].clone();
        assert_eq!(name(json!({ "a": 1 })), name(json!({ "a": 1 })));
        assert_ne!(name(json!({ "a": 1 })), name(json!({ "a": 2 })));
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
    }
}
