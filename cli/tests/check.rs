//! `vgpu check` on a machine with GPUs.

mod common;

use std::path::Path;

use serde_json::Value;
use vgpu_e2e::{Kit, Machine, host};
use vgpu_test_harness::Runtime;

/// Returns the state and message of each finding about GPUs.
fn gpus(check: &mut std::process::Command) -> Vec<(String, String)> {
    let output = check.args(["check", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let lines = report["checks"].as_array().unwrap().iter().filter(|line| line["check"] == "gpus");
    lines.map(|line| (text(line, "state"), text(line, "says"))).collect()
}

#[test]
fn each_gpu_is_reported() {
    let kit = Kit::find();
    let (machine, host) = (Machine::simulated(&kit, &["gpus=2", "total=4G"]), host(&kit, Runtime::Runc));
    let findings = gpus(&mut common::vgpu(&host, &machine));
    assert_eq!(findings.len(), 2, "{findings:?}");
    for (index, (state, message)) in findings.iter().enumerate() {
        assert!(state == "ok" && message.starts_with(&format!("{index}: ")) && message.contains(" GPU-"), "{state} {message}");
        assert!(message.ends_with(", 4096 MiB"), "{message}");
    }
    if !Path::new("/dev/nvidiactl").exists() {
        let findings = gpus(common::vgpu(&host, &machine).env_remove("LD_LIBRARY_PATH"));
        assert!(
            findings.len() == 1 && findings[0].0 == "fail" && findings[0].1.starts_with("NVML: libnvidia-ml.so.1 cannot be loaded"),
            "no container can share a GPU: {findings:?}"
        );
    }
}
