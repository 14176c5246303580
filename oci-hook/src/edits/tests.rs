use vgpu_config::limits::{GpuLimits, Mps, Which};

use super::*;

#[test]
fn edits_of_a_limited_container() {
    let limits = Limits { gpus: vec![GpuLimits { memory: Some(1), ..GpuLimits::none(Which::All) }], ..Limits::default() };
    let places = Places { inside: vec!["/a", "/b"], state_dir: "/s".into(), hook: "/h".into() };
    let edits = edits(&limits, &places);
    assert_eq!(edits.places, ["/a", "/b"]);
    let [hook] = edits.hooks.as_slice() else { panic!("one hook: {:?}", edits.hooks) };
    assert_eq!((&hook["path"], &hook["args"]), (&json!("/h"), &json!(["vgpu-hook", "create-container", "--state-dir", "/s"])));
    assert_eq!(hook["env"].as_array().map(Vec::len), Some(1), "a hook without an environment gets the image's");
    assert_eq!(hook["timeout"], 10, "a runtime waits for a hook for ever otherwise");
}

#[test]
fn only_the_runtimes_own_hook_says_that_it_was_here() {
    let by = |stage: &str, args: Value| is_planned(&Spec(json!({ "hooks": { stage: [{ "path": "/other" }, { "args": args }] } })));
    assert!(by(STAGE, json!(["vgpu-hook", "create-container", "--state-dir", "/s"])));
    assert!(!by(STAGE, json!(["vgpu-hook", "create-container", "--config", "/c"])), "earlier versions' hooks.d");
    assert!(!by("createRuntime", json!(["vgpu-hook", "create-runtime", "--config", "/c"])));
    assert!(!is_planned(&Spec(json!({ "mounts": [{ "destination": paths::LIMITS, "source": "/tenants" }] }))));
}

#[test]
fn edits_of_a_client_of_mps() {
    let gpu = GpuLimits { memory: Some(1 << 30), cores: Some(30), ..GpuLimits::none(Which::All) };
    let mut limits = Limits { gpus: vec![gpu], ..Limits::default() };
    limits.mps = Mps::of(&limits, Path::new("/run/mps"));
    let edits = edits(&limits, &Places { inside: vec![], state_dir: "/s".into(), hook: "/h".into() });
    let env = [
        ("CUDA_MPS_PIPE_DIRECTORY", "/usr/local/vgpu/mps"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1024M"),
    ];
    assert_eq!(edits.env, env.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn narrowed_without_limits() {
    let limits = Limits { devices: Some(vec!["0".into(), "2".into()]), driver_capabilities: Some("compute".into()), ..Limits::default() };
    let edits = edits(&limits, &Places { inside: vec![], state_dir: "/s".into(), hook: "/h".into() });
    let env = [("NVIDIA_VISIBLE_DEVICES", "0,2"), ("NVIDIA_DRIVER_CAPABILITIES", "compute")];
    assert_eq!(edits.env, env.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert!(edits.places.is_empty() && edits.hooks.is_empty());
}
