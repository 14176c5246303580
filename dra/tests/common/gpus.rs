//! GPUs that come and go, and what an API server checks of slices beyond their schema.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use vgpu_config::inventory::Gpu;
use vgpu_dra::discovery::{GpuInfo, GpuSource, Machine};
use vgpu_dra::quantity;

/// The UUID of the simulated GPU of this number.
pub fn uuid(number: usize) -> String {
    format!("GPU-516d6770-7500-4000-8000-{number:012}")
}

/// Its device's name.
pub fn device(number: usize) -> String {
    uuid(number).to_ascii_lowercase()
}

/// GPUs of 24 GiB.
pub fn found(number: usize) -> GpuInfo {
    let index = number as u32;
    let gpu = Gpu { index, uuid: uuid(number), name: "Simulated GPU".to_owned(), memory: 24 << 30, minor: Some(index), mig: Vec::new() };
    GpuInfo {
        gpu,
        architecture: Some("Hopper".to_owned()),
        address: Some(format!("0000:{number:02x}:00.0")),
        pcie_root: Some("pci0000:00".to_owned()),
        numa: Some(0),
        partitioned: false,
        partitions: Vec::new(),
    }
}

/// A machine whose GPUs a test changes.
#[derive(Clone)]
pub struct Gpus(Arc<Mutex<Result<Vec<usize>, String>>>);

impl Gpus {
    /// One with these.
    pub fn with(numbers: impl IntoIterator<Item = usize>) -> Self {
        let gpus = Self(Arc::new(Mutex::new(Ok(Vec::new()))));
        gpus.set(numbers);
        gpus
    }

    /// Now it has these.
    pub fn set(&self, numbers: impl IntoIterator<Item = usize>) {
        *self.0.lock().unwrap() = Ok(numbers.into_iter().collect());
    }

    /// Now its driver does not answer.
    pub fn fail(&self) {
        *self.0.lock().unwrap() = Err("no driver".to_owned());
    }
}

impl GpuSource for Gpus {
    fn discover(&self) -> Result<Machine, String> {
        let numbers = self.0.lock().unwrap().clone()?;
        Ok(Machine { driver: Some("580.95.05".to_owned()), cuda: Some(13000), gpus: numbers.into_iter().map(found).collect() })
    }
}

/// What an API server finds wrong with a slice whose schema is right.
pub fn slice_problems(slice: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let devices = slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
    let tainted = devices.iter().any(|device| !device["taints"].is_null());
    if devices.len() > if tainted { 64 } else { 128 } {
        problems.push(format!("{} devices", devices.len()));
    }
    let pool = &slice["spec"]["pool"];
    if pool["resourceSliceCount"].as_i64().unwrap_or(0) < 1 || pool["generation"].as_i64().unwrap_or(0) < 0 {
        problems.push(format!("the pool {pool}"));
    }
    for device in &devices {
        let name = device["name"].as_str().unwrap_or_default();
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(label) || name.starts_with('-') || name.ends_with('-') {
            problems.push(format!("the name {name:?}"));
        }
        let attributes = device["attributes"].as_object().cloned().unwrap_or_default();
        let capacity = device["capacity"].as_object().cloned().unwrap_or_default();
        if attributes.len() + capacity.len() > 32 {
            problems.push("too many attributes".to_owned());
        }
        for key in attributes.keys().chain(capacity.keys()) {
            let id = key.rsplit('/').next().unwrap();
            if id.len() > 32
                || !id.starts_with(|c: char| c.is_ascii_alphabetic())
                || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            {
                problems.push(format!("the key {key:?}"));
            }
        }
        for (key, value) in &attributes {
            let one = value.as_object().is_some_and(|value| value.len() == 1);
            let short = value["string"].as_str().is_none_or(|text| text.len() <= 64);
            let semver = |text: &str| {
                text.split('.').count() == 3
                    && text.split('.').all(|part| part == "0" || !part.starts_with('0') && part.parse::<u64>().is_ok())
            };
            if !one || !short || !value["version"].as_str().is_none_or(semver) {
                problems.push(format!("the attribute {key}: {value}"));
            }
        }
        for (key, value) in &capacity {
            let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).and_then(quantity::parse);
            let (Some(all), Some(default)) = (number("/value"), number("/requestPolicy/default")) else {
                problems.push(format!("the capacity {key}: {value}"));
                continue;
            };
            let range = "/requestPolicy/validRange";
            let (Some(min), Some(max), Some(step)) =
                (number(&format!("{range}/min")), number(&format!("{range}/max")), number(&format!("{range}/step")))
            else {
                problems.push(format!("the range of {key}: {value}"));
                continue;
            };
            let right =
                min <= default && default <= max && max <= all && step > 0 && (default - min) % step == 0 && (max - min) % step == 0;
            if !right || device["allowMultipleAllocations"] != true {
                problems.push(format!("the policy of {key}: {value}"));
            }
        }
    }
    problems
}
