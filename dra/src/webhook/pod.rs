//! Rewriting of pods: HAMi's resources become claims.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use vgpu_config::dialect::annotations;

use crate::webhook::resources::{self, GpuRequest};
use crate::webhook::template::{self, Placement, fingerprint};

/// Maximum length of a claim's name in a pod: that of a DNS label.
const MAX_NAME_BYTES: usize = 63;

/// Rewritten pod.
#[derive(Clone, Debug, PartialEq)]
pub struct MutatedPod {
    /// New `spec` of the pod.
    pub spec: Value,
    /// Templates that it refers to.
    pub templates: Vec<Value>,
    /// What its author should know.
    pub warnings: Vec<String>,
}

/// Returns true if the pod requests a percentage of memory, for which the memory sizes of the cluster's GPUs are needed.
#[must_use]
pub fn needs_gpu_sizes(pod: &Value) -> bool {
    containers(pod).any(|container| container["resources"].to_string().contains(annotations::MEMORY_PERCENT))
}

/// Returns the containers of a pod, init containers last.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| pod.get("spec").and_then(|spec| spec.get(list)?.as_array()).into_iter().flatten())
}

/// Replaces HAMi's resources in a pod by claims. Returns `None` if the pod has none. `sizes` are the memory sizes of the cluster's GPUs in
/// bytes, and `runtime_class` is the RuntimeClass for a pod that names none.
///
/// # Errors
/// A value is not one that HAMi documents, or cannot be expressed as a claim.
pub fn mutate(pod: &Value, sizes: &BTreeSet<u64>, runtime_class: Option<&str>) -> Result<Option<MutatedPod>, String> {
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    if resources::is_ignored(pod.pointer("/metadata/labels").and_then(Value::as_object)) {
        return Ok(None);
    }
    let placement = Placement { selectors: resources::selectors(annotations)?, is_numa_bound: resources::is_numa_bound(annotations)? };
    // Lists are looked up with `get_mut`, because indexing a mutable value panics if it is no object and adds keys that are missing.
    let Some(mut spec) = pod["spec"].as_object().cloned() else { return Ok(None) };
    let mut claims = Claims { placement: &placement, sizes, list: Vec::new(), templates: Vec::new() };
    let mut is_changed = false;
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
            // An init container ends before the others start, and so can use a claim of theirs. A sidecar runs alongside them.
            let is_init = list == "initContainers" && container.get("restartPolicy").is_none_or(|policy| policy != "Always");
            is_changed |= claims.replace_resources(container, is_init)?;
        }
    }
    if !is_changed {
        return Ok(None);
    }
    for claim in &claims.list {
        append(&mut spec, "resourceClaims", json!({ "name": claim.name, "resourceClaimTemplateName": claim.template }))?;
    }
    if let (Some(class), false, true) = (runtime_class, claims.list.is_empty(), spec.get("runtimeClassName").is_none_or(Value::is_null)) {
        spec.insert("runtimeClassName".to_owned(), json!(class));
    }
    let mut templates = claims.templates;
    templates.dedup();
    Ok(Some(MutatedPod { spec: Value::Object(spec), templates, warnings: resources::warnings(annotations) }))
}

/// Claims of a pod so far.
struct Claims<'a> {
    placement: &'a Placement,
    sizes: &'a BTreeSet<u64>,
    list: Vec<Claim>,
    templates: Vec<Value>,
}

/// Claim that a container's request became.
struct Claim {
    name: String,
    template: Value,
    request: GpuRequest,
}

impl Claims<'_> {
    /// Replaces HAMi's resources in a container. Returns false if it has none.
    fn replace_resources(&mut self, container: &mut Map<String, Value>, is_init: bool) -> Result<bool, String> {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return Ok(false) };
        let extracted = resources::extract(resources).map_err(|error| format!("container {name}: {error}"))?;
        if let Some(request) = extracted.gpus {
            let claim = self.claim(&name, request, is_init).map_err(|error| format!("container {name}: {error}"))?;
            append(resources, "claims", json!({ "name": claim }))?;
        }
        if let Some(priority) = extracted.priority {
            append(container, "env", json!({ "name": "CUDA_TASK_PRIORITY", "value": priority.to_string() }))?;
        }
        Ok(extracted.gpus.is_some() || extracted.priority.is_some())
    }

    /// Returns the name of the claim for a container's request. With `may_share`, it may be the claim of another container.
    fn claim(&mut self, container: &str, request: GpuRequest, may_share: bool) -> Result<String, String> {
        if let Some(claim) = self.list.iter().find(|claim| may_share && claim.request == request) {
            return Ok(claim.name.clone());
        }
        let template = template::claim_template(&template::claim_spec(&request, self.placement, self.sizes)?);
        let name = claim_name(container);
        let template_name = template.pointer("/metadata/name").cloned().unwrap_or_default();
        self.list.push(Claim { name: name.clone(), template: template_name, request });
        self.templates.push(template);
        Ok(name)
    }
}

/// Appends to a list, which is created if it is missing or null.
fn append(map: &mut Map<String, Value>, key: &str, value: Value) -> Result<(), String> {
    match map.get_mut(key) {
        Some(Value::Array(list)) => list.push(value),
        None | Some(Value::Null) => drop(map.insert(key.to_owned(), json!([value]))),
        Some(_) => return Err(format!("{key}: expected a list")),
    }
    Ok(())
}

/// Returns the name of a container's claim in its pod, at most [`MAX_NAME_BYTES`] long.
fn claim_name(container: &str) -> String {
    let name = format!("vgpu-{container}");
    if name.len() <= MAX_NAME_BYTES { name } else { format!("vgpu-{:016x}", fingerprint(container)) }
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

    fn mutated(pod: &Value) -> MutatedPod {
        mutate(pod, &BTreeSet::new(), Some("vgpu")).unwrap().unwrap()
    }

    #[test]
    fn each_container_gets_its_own_claim() {
        let MutatedPod { spec, templates, .. } = mutated(&pod(json!([gpu("a", 3000), gpu("b", 1000), { "name": "c" }]), json!({})));
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
    fn init_container_shares_an_equal_claim() {
        let init = json!({ "initContainers": [gpu("same", 3000), gpu("other", 500)], "runtimeClassName": "mine" });
        let MutatedPod { spec, .. } = mutated(&pod(json!([gpu("a", 3000)]), init));
        assert_eq!(spec["initContainers"][0]["resources"]["claims"], json!([{ "name": "vgpu-a" }]));
        assert_eq!(spec["initContainers"][1]["resources"]["claims"], json!([{ "name": "vgpu-other" }]));
        assert_eq!((spec["resourceClaims"].as_array().unwrap().len(), &spec["runtimeClassName"]), (2, &json!("mine")));
        let mut sidecar = gpu("side", 3000);
        sidecar["restartPolicy"] = json!("Always");
        let MutatedPod { spec, .. } = mutated(&pod(json!([gpu("a", 3000)]), json!({ "initContainers": [sidecar] })));
        assert_eq!(spec["resourceClaims"].as_array().unwrap().len(), 2, "a sidecar runs alongside the others");
    }

    #[test]
    fn pods_without_hami_resources_are_unchanged() {
        let other = pod(json!([{ "name": "a", "resources": { "limits": { "nvidia.com/mig-1g.10gb": 1 } } }]), json!({}));
        assert_eq!(mutate(&other, &BTreeSet::new(), Some("vgpu")).unwrap(), None);
    }

    #[test]
    fn malformed_pods_are_left_to_the_api_server() {
        for pod in [json!({ "spec": "x" }), json!({ "spec": { "containers": {}, "initContainers": 1 } }), json!([]), json!(null)] {
            assert_eq!(mutate(&pod, &BTreeSet::new(), Some("vgpu")), Ok(None), "{pod}");
        }
        let mut container = gpu("a", 1);
        container["resources"]["claims"] = json!("x");
        let error = mutate(&pod(json!([container]), json!({})), &BTreeSet::new(), None).unwrap_err();
        assert!(error.contains("claims: expected a list"), "{error}");
    }

    #[test]
    fn absent_and_null_lists_stay_as_they_are() {
        let MutatedPod { spec, .. } = mutated(&pod(json!([gpu("a", 1)]), json!({})));
        assert_eq!(spec.get("initContainers"), None);
        let MutatedPod { spec, .. } = mutated(&pod(json!([gpu("a", 1)]), json!({ "initContainers": null })));
        assert_eq!(spec.get("initContainers"), Some(&Value::Null));
    }

    #[test]
    fn hamis_annotations_and_label_are_honoured_or_named() {
        let with = |key: &str, value: &str| {
            let mut pod = pod(json!([gpu("a", 1)]), json!({}));
            pod["metadata"] = json!({ "annotations": { key: value } });
            mutate(&pod, &BTreeSet::new(), None).map(|mutated| mutated.unwrap().warnings)
        };
        assert!(with("nvidia.com/numa-bind", "true").unwrap().is_empty());
        assert!(with("nvidia.com/numa-bind", "yes").unwrap_err().contains("expected true or false"));
        assert!(with("hami.io/gpu-scheduler-policy", "spread").unwrap()[0].starts_with("hami.io/gpu-scheduler-policy: not applied"));
        let mut ignored = pod(json!([gpu("a", 1)]), json!({}));
        ignored["metadata"] = json!({ "labels": { "hami.io/webhook": "ignore" } });
        assert_eq!(mutate(&ignored, &BTreeSet::new(), None), Ok(None));
    }

    #[test]
    fn priority_becomes_hamis_variable() {
        let mut container = gpu("a", 1);
        container["resources"]["limits"]["nvidia.com/priority"] = json!(0);
        let MutatedPod { spec, .. } = mutated(&pod(json!([container]), json!({})));
        assert_eq!(spec["containers"][0]["env"], json!([{ "name": "CUDA_TASK_PRIORITY", "value": "0" }]));
    }

    #[test]
    fn long_claim_names_are_hashed_and_errors_name_the_container() {
        assert!(claim_name(&"x".repeat(63)).len() <= 63);
        let mut wrong = gpu("a", 1);
        wrong["resources"]["limits"]["nvidia.com/gpucores"] = json!(101);
        assert!(
            mutate(&pod(json!([wrong]), json!({})), &BTreeSet::new(), None).unwrap_err().starts_with("container a: nvidia.com/gpucores")
        );
    }
}
