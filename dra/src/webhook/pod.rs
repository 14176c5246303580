//! A pod with HAMi's resources as one with claims.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::webhook::resources::{self, GpuRequest};
use crate::webhook::template::{self, fingerprint};

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct MutatedPod {
    /// Its new `spec`.
    pub spec: Value,
    /// The templates that it refers to.
    pub templates: Vec<Value>,
}

/// Whether percentages are asked for, so that the sizes of GPUs have to be known.
#[must_use]
pub fn needs_gpu_sizes(pod: &Value) -> bool {
    containers(pod).any(|container| container["resources"].to_string().contains(vgpu_config::dialect::annotations::MEMORY_PERCENT))
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["containers", "initContainers"].into_iter().flat_map(|list| pod["spec"][list].as_array().into_iter().flatten())
}

/// Turns HAMi's resources into claims. `None`: there are none, and the pod stays as it is. `class` is the RuntimeClass for a pod that
/// says none.
///
/// # Errors
/// A value is not as HAMi documents it, or cannot be had.
pub fn mutate(pod: &Value, sizes: &BTreeSet<u64>, class: Option<&str>) -> Result<Option<MutatedPod>, String> {
    let selectors = resources::selectors(pod["metadata"]["annotations"].as_object())?;
    let mut spec = pod["spec"].clone();
    let mut claims: Vec<Claim> = Vec::new();
    let (mut templates, mut touched) = (Vec::new(), false);
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            // Such a container is done before the others start, and so can have what one of them will have.
            let passing = list == "initContainers" && container["restartPolicy"] != "Always";
            let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { continue };
            let asked = resources::extract(resources).map_err(|why| format!("container {name}: {why}"))?;
            if let Some(wanted) = asked.ask {
                let same = claims.iter().find(|claim| passing && claim.ask == wanted);
                let claim = match same {
                    Some(claim) => claim.name.clone(),
                    None => {
                        let made = template::claim_template(
                            &template::claim_spec(&wanted, &selectors, sizes).map_err(|why| format!("container {name}: {why}"))?,
                        );
                        let claim = Claim { name: claim_name(&name), template: made["metadata"]["name"].clone(), ask: wanted };
                        templates.push(made);
                        claims.push(claim);
                        claim_name(&name)
                    }
                };
                append(resources, "claims", json!({ "name": claim }));
                touched = true;
            }
            if let Some(priority) = asked.priority {
                let container = container.as_object_mut().ok_or("a container is no object")?;
                append(container, "env", json!({ "name": "CUDA_TASK_PRIORITY", "value": priority.to_string() }));
                touched = true;
            }
        }
    }
    if !touched {
        return Ok(None);
    }
    let spec_map = spec.as_object_mut().ok_or("the pod has no spec")?;
    for claim in &claims {
        append(spec_map, "resourceClaims", json!({ "name": claim.name, "resourceClaimTemplateName": claim.template }));
    }
    if let (Some(class), false, true) = (class, claims.is_empty(), spec_map.get("runtimeClassName").is_none_or(Value::is_null)) {
        spec_map.insert("runtimeClassName".to_owned(), json!(class));
    }
    templates.dedup();
    Ok(Some(MutatedPod { spec, templates }))
}

struct Claim {
    name: String,
    template: Value,
    ask: GpuRequest,
}

fn append(to: &mut Map<String, Value>, key: &str, value: Value) {
    match to.get_mut(key).and_then(Value::as_array_mut) {
        Some(list) => list.push(value),
        None => drop(to.insert(key.to_owned(), json!([value]))),
    }
}

/// The name of a container's claim in its pod: a label, of which there is at most 63 bytes.
fn claim_name(container: &str) -> String {
    let name = format!("vgpu-{container}");
    if name.len() <= 63 { name } else { format!("vgpu-{:016x}", fingerprint(container)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: Value, more: Value) -> Value {
        let mut pod = json!({ "metadata": {}, "spec": { "containers": containers } });
        for (key, value) in more.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        pod
    }

    fn gpu(name: &str, mib: u64) -> Value {
        json!({ "name": name, "image": "i", "resources": { "limits": { "cpu": 1, "nvidia.com/gpu": 1, "nvidia.com/gpumem": mib } } })
    }

    fn changed(pod: &Value) -> MutatedPod {
        mutate(pod, &BTreeSet::new(), Some("vgpu")).unwrap().unwrap()
    }

    #[test]
    fn each_container_gets_a_claim_of_its_own() {
        let MutatedPod { spec, templates } = changed(&pod(json!([gpu("a", 3000), gpu("b", 1000), { "name": "c" }]), json!({})));
        assert_eq!(spec["containers"][0]["resources"], json!({ "limits": { "cpu": 1 }, "claims": [{ "name": "vgpu-a" }] }));
        assert_eq!(spec["containers"][2], json!({ "name": "c" }));
        let names: Vec<&Value> = templates.iter().map(|template| &template["metadata"]["name"]).collect();
        assert_eq!(
            spec["resourceClaims"],
            json!([
                { "name": "vgpu-a", "resourceClaimTemplateName": names[0] },
                { "name": "vgpu-b", "resourceClaimTemplateName": names[1] },
            ])
        );
        assert_eq!(spec["runtimeClassName"], "vgpu");
    }

    #[test]
    fn an_init_container_has_what_a_container_will_have() {
        let init = json!({ "initContainers": [gpu("same", 3000), gpu("other", 500)], "runtimeClassName": "mine" });
        let MutatedPod { spec, .. } = changed(&pod(json!([gpu("a", 3000)]), init));
        assert_eq!(spec["initContainers"][0]["resources"]["claims"], json!([{ "name": "vgpu-a" }]));
        assert_eq!(spec["initContainers"][1]["resources"]["claims"], json!([{ "name": "vgpu-other" }]));
        assert_eq!((spec["resourceClaims"].as_array().unwrap().len(), &spec["runtimeClassName"]), (2, &json!("mine")));
        let mut sidecar = gpu("side", 3000);
        sidecar["restartPolicy"] = json!("Always");
        let MutatedPod { spec, .. } = changed(&pod(json!([gpu("a", 3000)]), json!({ "initContainers": [sidecar] })));
        assert_eq!(spec["resourceClaims"].as_array().unwrap().len(), 2, "it runs beside the others");
    }

    #[test]
    fn other_pods_stay_as_they_are() {
        let other = pod(json!([{ "name": "a", "resources": { "limits": { "nvidia.com/mig-1g.10gb": 1 } } }]), json!({}));
        assert_eq!(mutate(&other, &BTreeSet::new(), Some("vgpu")).unwrap(), None);
    }

    #[test]
    fn a_priority_becomes_hamis_variable() {
        let mut container = gpu("a", 1);
        container["resources"]["limits"]["nvidia.com/priority"] = json!(0);
        let MutatedPod { spec, .. } = changed(&pod(json!([container]), json!({})));
        assert_eq!(spec["containers"][0]["env"], json!([{ "name": "CUDA_TASK_PRIORITY", "value": "0" }]));
    }

    #[test]
    fn long_names_are_shortened_and_refusals_name_the_container() {
        assert!(claim_name(&"x".repeat(63)).len() <= 63);
        let mut wrong = gpu("a", 1);
        wrong["resources"]["limits"]["nvidia.com/gpucores"] = json!(101);
        assert!(
            mutate(&pod(json!([wrong]), json!({})), &BTreeSet::new(), None).unwrap_err().starts_with("container a: nvidia.com/gpucores")
        );
    }
}
