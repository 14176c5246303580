use serde_json::{Value, json};
use vgpu_config::limits::{GpuLimits, Mps, Which};
use vgpu_config::quantity::Bytes;

use super::*;

fn edits_for(limits: &Limits) -> Edits {
    edits(limits, vec!["/a", "/b"], Path::new("/h"), Path::new("/s")).unwrap()
}

#[test]
fn a_limited_container_gets_a_hook() {
    let limits = Limits { gpus: vec![GpuLimits { memory: Bytes::new(1), ..GpuLimits::none(Which::All) }], ..Limits::default() };
    let edits = edits_for(&limits);
    assert_eq!(edits.destinations, ["/a", "/b"]);
    let [hook] = edits.hooks.as_slice() else { panic!("one hook: {:?}", edits.hooks) };
    let expected = json!({
        "path": "/h",
        "args": ["vgpu-hook", "create-container", "--state-dir", "/s"],
        // A hook without an environment gets the image's.
        "env": ["VGPU=1"],
        "timeout": 10,
    });
    assert_eq!(serde_json::to_value(hook).unwrap(), expected);
}

#[test]
fn only_the_hook_of_vgpu_runtime_marks_a_container() {
    let has_hook = |stage: &str, args: Value| {
        let hooks = [json!({ "path": "/other" }), json!({ "path": "/h", "args": args })];
        has_runtime_hook(&Spec::from(json!({ "hooks": { stage: hooks } })))
    };
    assert!(has_hook(STAGE, json!(["vgpu-hook", "create-container", "--state-dir", "/s"])));
    assert!(!has_hook(STAGE, json!(["vgpu-hook", "create-container", "--config", "/c"])), "hooks.d of earlier versions");
    assert!(!has_hook("createRuntime", json!(["vgpu-hook", "create-runtime", "--config", "/c"])));
    assert!(!has_runtime_hook(&Spec::from(json!({ "mounts": [{ "destination": paths::LIMITS, "source": "/tenants" }] }))));
}

#[test]
fn mps_clients_get_its_variables() {
    let gpu = GpuLimits { memory: Bytes::new(1 << 30), cores: Some(30), ..GpuLimits::none(Which::All) };
    let mut limits = Limits { gpus: vec![gpu], ..Limits::default() };
    limits.mps = Mps::of(&limits, Path::new("/run/mps"));
    let env = [
        ("CUDA_MPS_PIPE_DIRECTORY", "/usr/local/vgpu/mps"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1024M"),
    ];
    assert_eq!(edits_for(&limits).env, env.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn a_narrowed_container_without_limits_gets_only_variables() {
    let limits = Limits { devices: Some(vec!["0".into(), "2".into()]), driver_capabilities: Some("compute".into()), ..Limits::default() };
    let edits = edits_for(&limits);
    let env = [("NVIDIA_VISIBLE_DEVICES", "0,2"), ("NVIDIA_DRIVER_CAPABILITIES", "compute")];
    assert_eq!(edits.env, env.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert!(edits.destinations.is_empty() && edits.hooks.is_empty());
}
