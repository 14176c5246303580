//! Validation of slices by an API server, beyond their schema.

use serde_json::Value;
use vgpu_dra::quantity;

/// Returns the problems of a slice whose schema is right.
pub fn slice_problems(slice: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let devices = slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
    let has_taints = devices.iter().any(|device| !device["taints"].is_null());
    if devices.len() > if has_taints { 64 } else { 128 } {
        problems.push(format!("{} devices", devices.len()));
    }
    let pool = &slice["spec"]["pool"];
    if pool["resourceSliceCount"].as_i64().unwrap_or(0) < 1 || pool["generation"].as_i64().unwrap_or(0) < 0 {
        problems.push(format!("pool {pool}"));
    }
    for device in &devices {
        problems.extend(device_problems(device));
    }
    problems
}

fn device_problems(device: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let name = device["name"].as_str().unwrap_or_default();
    let in_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 63 || !name.chars().all(in_label) || name.starts_with('-') || name.ends_with('-') {
        problems.push(format!("name {name:?}"));
    }
    let attributes = device["attributes"].as_object().cloned().unwrap_or_default();
    let capacity = device["capacity"].as_object().cloned().unwrap_or_default();
    if attributes.len() + capacity.len() > 32 {
        problems.push("too many attributes".to_owned());
    }
    for key in attributes.keys().chain(capacity.keys()) {
        let id = key.rsplit('/').next().unwrap();
        let in_id = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if id.len() > 32 || !id.starts_with(|c: char| c.is_ascii_alphabetic()) || !id.chars().all(in_id) {
            problems.push(format!("key {key:?}"));
        }
    }
    for (key, value) in &attributes {
        let has_one_type = value.as_object().is_some_and(|value| value.len() == 1);
        let is_short = value["string"].as_str().is_none_or(|text| text.len() <= 64);
        if !has_one_type || !is_short || !value["version"].as_str().is_none_or(is_semver) {
            problems.push(format!("attribute {key}: {value}"));
        }
    }
    let is_shared = device["allowMultipleAllocations"] == true;
    problems.extend(capacity.iter().filter_map(|(key, value)| capacity_problem(key, value, is_shared)));
    problems
}

fn is_semver(text: &str) -> bool {
    text.split('.').count() == 3 && text.split('.').all(|part| part == "0" || !part.starts_with('0') && part.parse::<u64>().is_ok())
}

fn capacity_problem(key: &str, value: &Value, is_shared: bool) -> Option<String> {
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).and_then(quantity::parse);
    let (Some(total), Some(default)) = (number("/value"), number("/requestPolicy/default")) else {
        return Some(format!("capacity {key}: {value}"));
    };
    let bound = |name: &str| number(&format!("/requestPolicy/validRange/{name}"));
    let (Some(min), Some(max), Some(step)) = (bound("min"), bound("max"), bound("step")) else {
        return Some(format!("range of {key}: {value}"));
    };
    let is_valid = min <= default && default <= max && max <= total && step > 0 && (default - min) % step == 0 && (max - min) % step == 0;
    (!is_valid || !is_shared).then(|| format!("policy of {key}: {value}"))
}
