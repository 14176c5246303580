//! Stand-in for the container runtime: applies CDI devices to a bundle.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use vgpu_test_harness::Bundle;

/// Applies CDI devices to a bundle, from the specifications in a directory. Devices of NVIDIA's kinds, which have no specification there,
/// are skipped.
pub fn apply(spec_dir: &Path, ids: &[String], mut bundle: Bundle) -> Bundle {
    let specs: Vec<Value> = std::fs::read_dir(spec_dir)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "json"))
        .map(|entry| serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap())
        .collect();
    let mut applied: Vec<&str> = Vec::new();
    let mut used_specs: BTreeMap<usize, &Value> = BTreeMap::new();
    for id in ids {
        if applied.contains(&id.as_str()) {
            continue;
        }
        applied.push(id);
        let (kind, name) = id.split_once('=').expect("KIND=NAME");
        if !specs.iter().any(|spec| spec["kind"] == kind) {
            assert!(kind.starts_with("nvidia.com/"), "no specification of kind {kind}");
            continue;
        }
        let found = specs.iter().enumerate().filter(|(_, spec)| spec["kind"] == kind).find_map(|(index, spec)| {
            let device = spec["devices"].as_array()?.iter().find(|device| device["name"] == name)?;
            Some((index, spec, device))
        });
        let (index, spec, device) = found.unwrap_or_else(|| panic!("no device {id}"));
        used_specs.insert(index, spec);
        bundle = apply_edits(bundle, &device["containerEdits"]);
    }
    for spec in used_specs.values() {
        bundle = apply_edits(bundle, &spec["containerEdits"]);
    }
    bundle
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn apply_edits(mut bundle: Bundle, edits: &Value) -> Bundle {
    for entry in list(&edits["env"]) {
        let entry = entry.as_str().unwrap();
        let key = entry.split('=').next().unwrap().to_owned() + "=";
        // A later value replaces an earlier one, as in containerd.
        let env = bundle.spec["process"]["env"].as_array_mut().unwrap();
        env.retain(|known| !known.as_str().unwrap().starts_with(&key));
        env.push(json!(entry));
    }
    for mount in list(&edits["mounts"]) {
        let entry =
            json!({ "source": mount["hostPath"], "destination": mount["containerPath"], "type": "bind", "options": mount["options"] });
        bundle.spec["mounts"].as_array_mut().unwrap().push(entry);
    }
    for node in list(&edits["deviceNodes"]) {
        bundle = bundle.device(node["path"].as_str().unwrap());
    }
    for hook in list(&edits["hooks"]) {
        let stage = hook["hookName"].as_str().unwrap();
        if bundle.spec["hooks"].get(stage).is_none() {
            bundle.spec["hooks"][stage] = json!([]);
        }
        let entry = json!({ "path": hook["path"], "args": hook["args"], "env": hook["env"], "timeout": hook["timeout"] });
        bundle.spec["hooks"][stage].as_array_mut().unwrap().push(entry);
    }
    bundle
}
