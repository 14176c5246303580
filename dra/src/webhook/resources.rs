//! What a container asks for by HAMi's resources, and a pod by HAMi's annotations.

use serde_json::{Map, Value};
use vgpu_config::dialect::annotations::{CORES, COUNT, MEMORY, MEMORY_PERCENT, NOUSE_TYPE, NOUSE_UUID, PRIORITY, USE_TYPE, USE_UUID};

use crate::quantity;

/// How much memory of each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All of it.
    Whole,
    /// So many MiB.
    Mib(u64),
    /// So many percent.
    Percent(u64),
}

/// What one container asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// How many GPUs.
    pub count: u64,
    /// Memory of each.
    pub memory: Memory,
    /// Compute time of each in percent; `None` is no limit.
    pub cores: Option<u64>,
}

/// A container's resources that are taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HamiResources {
    /// What becomes a claim, if anything does.
    pub ask: Option<GpuRequest>,
    /// HAMi's task priority.
    pub priority: Option<u64>,
}

/// Takes HAMi's resources out of a container's `resources`.
///
/// # Errors
/// A value that HAMi does not know, with the key, the value and what is accepted.
pub fn extract(resources: &mut Map<String, Value>) -> Result<HamiResources, String> {
    let mut number = |key: &str, least: u64, most: u64| -> Result<Option<u64>, String> {
        let mut said = None;
        // A limit is what counts, as for all extended resources.
        for part in ["requests", "limits"] {
            let Some(part) = resources.get_mut(part).and_then(Value::as_object_mut) else { continue };
            said = part.shift_remove(key).or(said);
        }
        let Some(value) = said else { return Ok(None) };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let parsed = quantity::parse_exact(&text).filter(|number| (least..=most).contains(number));
        parsed
            .map(Some)
            .ok_or_else(|| format!("{key}: {}: accepted is a whole number from {least} to {most}", vgpu_config::error::one_line(&text)))
    };
    let count = number(COUNT, 0, 16)?;
    let memory = number(MEMORY, 0, 1 << 30)?.filter(|mib| *mib > 0);
    let percent = number(MEMORY_PERCENT, 0, 100)?;
    let cores = number(CORES, 0, 100)?;
    let priority = number(PRIORITY, 0, 1)?;
    let nothing = count.is_none() && memory.is_none() && percent.is_none() && cores.is_none();
    let count = count.unwrap_or(1);
    let part = percent.filter(|percent| (1..100).contains(percent));
    let ask = GpuRequest {
        count,
        // As in HAMi, MiB go before percent.
        memory: memory.map(Memory::Mib).or(part.map(Memory::Percent)).unwrap_or(Memory::Whole),
        cores: cores.filter(|cores| (1..100).contains(cores)),
    };
    Ok(HamiResources { ask: (!nothing && count > 0).then_some(ask), priority })
}

/// The choice of GPUs that a pod's annotations make, in CEL; none if they make none.
///
/// # Errors
/// A value that is not as documented.
pub fn selectors(annotations: Option<&Map<String, Value>>) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for (key, wanted, by_type) in [(USE_UUID, true, false), (NOUSE_UUID, false, false), (USE_TYPE, true, true), (NOUSE_TYPE, false, true)] {
        let Some(value) = annotations.and_then(|annotations| annotations.get(key)).and_then(Value::as_str) else { continue };
        let parts: Vec<String> = value.split(',').map(|part| part.trim().to_lowercase()).filter(|part| !part.is_empty()).collect();
        let plain = |part: &String| part.len() <= 96 && part.chars().all(|c| c.is_alphanumeric() || " -_.".contains(c));
        if parts.is_empty() || parts.len() > 32 || !parts.iter().all(plain) {
            return Err(format!(
                "{key}: {}: accepted is a comma list of letters, digits, blanks and -_.",
                vgpu_config::error::one_line(value)
            ));
        }
        let list = parts.iter().map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join(", ");
        let expression = if by_type {
            format!("[{list}].exists(part, device.attributes[\"{0}\"].productName.lowerAscii().contains(part))", crate::names::DRIVER)
        } else {
            format!("device.attributes[\"{0}\"].uuid.lowerAscii() in [{list}]", crate::names::DRIVER)
        };
        all.push(if wanted { expression } else { format!("!({expression})") });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(limits: Value) -> Result<HamiResources, String> {
        let mut resources = json!({ "limits": limits });
        let asked = extract(resources.as_object_mut().unwrap());
        if asked.is_ok() {
            assert!(!resources.to_string().contains("nvidia.com/"), "{resources}");
        }
        asked
    }

    #[test]
    fn hamis_resources_mean_what_they_mean_there() {
        let cases = [
            ("a whole GPU", json!({ "nvidia.com/gpu": 1 }), Some((1, Memory::Whole, None))),
            ("as texts", json!({ "nvidia.com/gpu": "2", "nvidia.com/gpumem": "3k" }), Some((2, Memory::Mib(3000), None))),
            ("one unless said", json!({ "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30 }), Some((1, Memory::Mib(3000), Some(30)))),
            ("percent", json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50 }), Some((1, Memory::Percent(50), None))),
            ("all of it in percent", json!({ "nvidia.com/gpumem-percentage": 100 }), Some((1, Memory::Whole, None))),
            ("MiB go first", json!({ "nvidia.com/gpumem": 1, "nvidia.com/gpumem-percentage": 50 }), Some((1, Memory::Mib(1), None))),
            ("no limit of time", json!({ "nvidia.com/gpu": 1, "nvidia.com/gpucores": 100 }), Some((1, Memory::Whole, None))),
            ("none", json!({ "nvidia.com/gpu": 0 }), None),
            ("others' resources", json!({ "cpu": 1 }), None),
        ];
        for (description, limits, expected) in cases {
            let ask = asked(limits).unwrap().ask;
            assert_eq!(ask.map(|ask| (ask.count, ask.memory, ask.cores)), expected, "{description}");
        }
    }

    #[test]
    fn what_hami_does_not_know_is_refused() {
        for (limits, expected) in [
            (json!({ "nvidia.com/gpucores": 101 }), "nvidia.com/gpucores: 101: accepted is a whole number from 0 to 100"),
            (json!({ "nvidia.com/gpu": "-1" }), "nvidia.com/gpu: -1"),
            (json!({ "nvidia.com/gpu": "1.5" }), "nvidia.com/gpu: 1.5: accepted is a whole number"),
            (json!({ "nvidia.com/gpumem-percentage": "half" }), "from 0 to 100"),
        ] {
            let why = asked(limits).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn requests_are_taken_too_and_limits_go_before_them() {
        let mut resources =
            json!({ "limits": { "nvidia.com/gpumem": 2000, "cpu": 1 }, "requests": { "nvidia.com/gpumem": 1000, "nvidia.com/gpu": 1 } });
        let asked = extract(resources.as_object_mut().unwrap()).unwrap();
        assert_eq!(asked.ask.unwrap().memory, Memory::Mib(2000));
        assert_eq!(resources, json!({ "limits": { "cpu": 1 }, "requests": {} }));
    }

    #[test]
    fn choices_become_cel() {
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
        assert!(selectors(hostile.as_object()).unwrap_err().contains("accepted is a comma list"));
    }
}
