//! HAMi's extended resources of a container, and HAMi's annotations of a pod.

use serde_json::{Map, Value};
use vgpu_config::dialect::annotations::{CORES, COUNT, MEMORY, MEMORY_PERCENT, NOUSE_TYPE, NOUSE_UUID, PRIORITY, USE_TYPE, USE_UUID};
use vgpu_config::error::quoted;

use crate::names::DRIVER;
use crate::quantity;

/// Requested memory of each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All of it.
    Whole,
    /// Amount in MiB.
    Mib(u64),
    /// Percentage of the GPU's memory.
    Percent(u64),
}

/// GPU request of one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// Number of GPUs.
    pub count: u64,
    /// Memory of each GPU.
    pub memory: Memory,
    /// Compute time of each GPU in percent; `None` for no limit.
    pub cores: Option<u64>,
}

/// HAMi's resources of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HamiResources {
    /// Request that becomes a claim.
    pub gpus: Option<GpuRequest>,
    /// HAMi's task priority, 0 (high) or 1 (low).
    pub priority: Option<u64>,
}

/// Removes HAMi's resources from a container's `resources` and returns them.
///
/// # Errors
/// A value is not one that HAMi documents. The message names the key, the value and what was expected.
pub fn extract(resources: &mut Map<String, Value>) -> Result<HamiResources, String> {
    let mut take = |key: &str, max: u64| -> Result<Option<u64>, String> {
        let mut value = None;
        // Limits precede requests, as for all extended resources.
        for list in ["requests", "limits"] {
            let Some(list) = resources.get_mut(list).and_then(Value::as_object_mut) else { continue };
            value = list.shift_remove(key).or(value);
        }
        let Some(value) = value else { return Ok(None) };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let parsed = quantity::parse_exact(&text).filter(|number| *number <= max);
        parsed.map(Some).ok_or_else(|| format!("{key}: \"{}\": expected an integer from 0 to {max}", quoted(&text)))
    };
    let count = take(COUNT, 16)?;
    let memory = take(MEMORY, 1 << 30)?.filter(|mib| *mib > 0);
    let percent = take(MEMORY_PERCENT, 100)?;
    let cores = take(CORES, 100)?;
    let priority = take(PRIORITY, 1)?;
    let is_empty = count.is_none() && memory.is_none() && percent.is_none() && cores.is_none();
    let count = count.unwrap_or(1);
    let partial = percent.filter(|percent| (1..100).contains(percent));
    let request = GpuRequest {
        count,
        // MiB precede the percentage, as in HAMi.
        memory: memory.map(Memory::Mib).or(partial.map(Memory::Percent)).unwrap_or(Memory::Whole),
        cores: cores.filter(|cores| (1..100).contains(cores)),
    };
    Ok(HamiResources { gpus: (!is_empty && count > 0).then_some(request), priority })
}

/// HAMi's annotation for several GPUs of one NUMA node.
const NUMA_BIND: &str = "nvidia.com/numa-bind";
/// HAMi's annotations that claims cannot express: how its scheduler orders nodes and GPUs, and how its device plugin limits.
const NOT_APPLIED: [&str; 3] = ["hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy", "nvidia.com/vgpu-mode"];
/// HAMi's label of pods that its webhook leaves alone, and its value.
const IGNORE: (&str, &str) = ("hami.io/webhook", "ignore");

/// Returns whether a pod's labels say that webhooks leave it alone.
#[must_use]
pub fn is_ignored(labels: Option<&Map<String, Value>>) -> bool {
    labels.and_then(|labels| labels.get(IGNORE.0)).is_some_and(|value| value == IGNORE.1)
}

/// Returns whether a pod's annotations ask for GPUs of one NUMA node.
///
/// # Errors
/// The value is not one that HAMi documents.
pub fn is_numa_bound(annotations: Option<&Map<String, Value>>) -> Result<bool, String> {
    match annotations.and_then(|annotations| annotations.get(NUMA_BIND)).and_then(Value::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(format!("{NUMA_BIND}: \"{}\": expected true or false", quoted(other))),
    }
}

/// Returns a warning for each annotation of HAMi's that has no effect on a claim.
#[must_use]
pub fn warnings(annotations: Option<&Map<String, Value>>) -> Vec<String> {
    let present = NOT_APPLIED.iter().filter(|key| annotations.is_some_and(|annotations| annotations.contains_key(**key)));
    present.map(|key| format!("{key}: not applied: the Kubernetes scheduler places claims")).collect()
}

/// Returns whether a ResourceQuota's key limits one of HAMi's resources. Pods with claims do not count towards such a quota.
#[must_use]
pub fn is_quota_of_hami(key: &str) -> bool {
    let resource = key.strip_prefix("requests.").or(key.strip_prefix("limits.")).unwrap_or(key);
    [COUNT, MEMORY, MEMORY_PERCENT, CORES].contains(&resource)
}

/// Returns CEL selectors for the GPUs that a pod's annotations choose; empty if they choose none.
///
/// # Errors
/// A value is not one that HAMi documents. The message names the key, the value and what was expected.
pub fn selectors(annotations: Option<&Map<String, Value>>) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for (key, wanted, by_type) in [(USE_UUID, true, false), (NOUSE_UUID, false, false), (USE_TYPE, true, true), (NOUSE_TYPE, false, true)] {
        let Some(value) = annotations.and_then(|annotations| annotations.get(key)).and_then(Value::as_str) else { continue };
        let parts: Vec<String> = value.split(',').map(|part| part.trim().to_lowercase()).filter(|part| !part.is_empty()).collect();
        let plain = |part: &String| part.len() <= 96 && part.chars().all(|c| c.is_alphanumeric() || " -_.".contains(c));
        if parts.is_empty() || parts.len() > 32 || !parts.iter().all(plain) {
            return Err(format!(
                "{key}: \"{}\": expected a comma-separated list of names made of letters, digits, spaces and -_.",
                quoted(value)
            ));
        }
        let list = parts.iter().map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join(", ");
        let expression = if by_type {
            format!("[{list}].exists(part, device.attributes[\"{DRIVER}\"].productName.lowerAscii().contains(part))")
        } else {
            format!("device.attributes[\"{DRIVER}\"].uuid.lowerAscii() in [{list}]")
        };
        all.push(if wanted { expression } else { format!("!({expression})") });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn extracted(limits: Value) -> Result<HamiResources, String> {
        let mut resources = json!({ "limits": limits });
        let extracted = extract(resources.as_object_mut().unwrap());
        if extracted.is_ok() {
            assert!(!resources.to_string().contains("nvidia.com/"), "{resources}");
        }
        extracted
    }

    #[test]
    fn resources_mean_the_same_as_in_hami() {
        let cases = [
            ("a whole GPU", json!({ "nvidia.com/gpu": 1 }), Some((1, Memory::Whole, None))),
            ("strings", json!({ "nvidia.com/gpu": "2", "nvidia.com/gpumem": "3k" }), Some((2, Memory::Mib(3000), None))),
            ("one GPU by default", json!({ "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30 }), Some((1, Memory::Mib(3000), Some(30)))),
            ("percent", json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50 }), Some((1, Memory::Percent(50), None))),
            ("100 percent", json!({ "nvidia.com/gpumem-percentage": 100 }), Some((1, Memory::Whole, None))),
            ("MiB precede percent", json!({ "nvidia.com/gpumem": 1, "nvidia.com/gpumem-percentage": 50 }), Some((1, Memory::Mib(1), None))),
            ("no time limit", json!({ "nvidia.com/gpu": 1, "nvidia.com/gpucores": 100 }), Some((1, Memory::Whole, None))),
            ("none", json!({ "nvidia.com/gpu": 0 }), None),
            ("others' resources", json!({ "cpu": 1 }), None),
        ];
        for (description, limits, expected) in cases {
            let gpus = extracted(limits).unwrap().gpus;
            assert_eq!(gpus.map(|gpus| (gpus.count, gpus.memory, gpus.cores)), expected, "{description}");
        }
    }

    #[test]
    fn malformed_values_are_refused() {
        for (limits, expected) in [
            (json!({ "nvidia.com/gpucores": 101 }), r#"nvidia.com/gpucores: "101": expected an integer from 0 to 100"#),
            (json!({ "nvidia.com/gpu": "-1" }), r#"nvidia.com/gpu: "-1""#),
            (json!({ "nvidia.com/gpu": "1.5" }), r#"nvidia.com/gpu: "1.5": expected an integer"#),
            (json!({ "nvidia.com/gpumem-percentage": "half" }), "from 0 to 100"),
        ] {
            let error = extracted(limits).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn limits_precede_requests_and_both_are_removed() {
        let mut resources =
            json!({ "limits": { "nvidia.com/gpumem": 2000, "cpu": 1 }, "requests": { "nvidia.com/gpumem": 1000, "nvidia.com/gpu": 1 } });
        let extracted = extract(resources.as_object_mut().unwrap()).unwrap();
        assert_eq!(extracted.gpus.unwrap().memory, Memory::Mib(2000));
        assert_eq!(resources, json!({ "limits": { "cpu": 1 }, "requests": {} }));
    }

    #[test]
    fn annotations_become_cel_selectors() {
        let annotations = json!({ "nvidia.com/use-gputype": "A100,H200", "nvidia.com/nouse-gpuuuid": "GPU-AB" });
        let all = selectors(annotations.as_object()).unwrap();
        assert_eq!(
            all,
            [
                r#"!(device.attributes["gpu.vgpu"].uuid.lowerAscii() in ["gpu-ab"])"#,
                r#"["a100", "h200"].exists(part, device.attributes["gpu.vgpu"].productName.lowerAscii().contains(part))"#,
            ]
        );
        let hostile = json!({ "nvidia.com/use-gputype": "\"] || true || [\"" });
        assert!(selectors(hostile.as_object()).unwrap_err().contains("expected a comma-separated list"));
    }
}
