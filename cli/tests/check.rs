//! `vgpu check` where there are GPUs.

mod common;

use std::path::Path;

use serde_json::Value;
use vgpu_e2e::{Kit, Machine, host};
use vgpu_test_harness::Runtime;

/// The lines on GPUs: their state, and what they say.
fn gpus(check: &mut std::process::Command) -> Vec<(String, String)> {
    let output = check.args(["check", "--json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"));
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let lines = told["checks"].as_array().unwrap().iter().filter(|line| line["check"] == "gpus");
    lines.map(|line| (text(line, "state"), text(line, "says"))).collect()
}

#[test]
fn each_gpu_is_told() {
    let kit = Kit::find();
    let (machine, host) = (Machine::simulated(&kit, &["gpus=2", "total=4G"]), host(&kit, Runtime::Runc));
    let told = gpus(&mut common::vgpu(&host, &machine));
    assert_eq!(told.len(), 2, "{told:?}");
    for (index, (state, says)) in told.iter().enumerate() {
        assert!(state == "ok" && says.starts_with(&format!("{index}: ")) && says.contains(" GPU-"), "{state} {says}");
        assert!(says.ends_with(", 4096 MiB"), "{says}");
    }
    if !Path::new("/dev/nvidiactl").exists() {
        let told = gpus(common::vgpu(&host, &machine).env_remove("LD_LIBRARY_PATH"));
        assert!(told.len() == 1 && told[0].0 == "note" && told[0].1.starts_with("NVML: "), "no driver here is no fault: {told:?}");
    }
}
