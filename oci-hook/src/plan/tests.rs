//! From specifications to edits.

use vgpu_config::limits::{GpuLimits, Mps, Which};

use super::*;

fn nothing_to_read(_: &Path) -> Option<String> {
    None
}

fn concerned(spec: Value, policy: &str) -> bool {
    let spec = Spec(spec);
    concerns(&spec, &request(&spec, Path::new("/run/vgpu"), nothing_to_read).unwrap(), &Policy::parse(policy).unwrap())
}

#[test]
fn which_containers_concern_us() {
    let env = |entry: &str| json!({ "process": { "env": [entry] } });
    let cases = [
        ("a plain container", json!({ "linux": { "devices": [{ "path": "/dev/fuse" }] } }), false),
        ("asks for a limit", json!({ "annotations": { "nvidia.com/gpumem": "1024" } }), true),
        ("asks in HAMi's way", env("CUDA_DEVICE_MEMORY_LIMIT=1g"), true),
        ("is given all GPUs", env("NVIDIA_VISIBLE_DEVICES=all"), true),
        ("is given none", env("NVIDIA_VISIBLE_DEVICES=none"), false),
        ("is given void", env("NVIDIA_VISIBLE_DEVICES=void"), false),
        ("is given nothing", env("NVIDIA_VISIBLE_DEVICES="), false),
        ("has a device node", json!({ "linux": { "devices": [{ "path": "/dev/nvidia0" }] } }), true),
        ("has CDI's control node", json!({ "linux": { "devices": [{ "path": "/dev/nvidiactl" }] } }), true),
        ("mounts a device node", json!({ "mounts": [{ "destination": "/x", "source": "/dev/nvidia-uvm" }] }), true),
        ("mounts all device nodes", json!({ "mounts": [{ "destination": "/dev", "source": "/dev" }] }), true),
        ("has its own device file system", json!({ "mounts": [{ "destination": "/dev", "source": "tmpfs" }] }), false),
        ("ctr --gpus", json!({ "hooks": { "prestart": [{ "path": "/usr/bin/nvidia-container-cli" }] } }), true),
        ("an operator's own kind of node", json!({ "linux": { "devices": [{ "path": "/dev/simgpu" }] } }), true),
    ];
    for (description, spec, expected) in cases {
        assert_eq!(concerned(spec, "extra_device_nodes = [\"/dev/simgpu\"]"), expected, "{description}");
    }
    assert!(!concerned(json!({ "linux": { "devices": [{ "path": "/dev/simgpu" }] } }), ""));
}

#[test]
fn alnairs_file_is_found_through_its_mount() {
    let spec = Spec(json!({
        "process": { "env": ["ALNAIR_WORKSPACE_PATH=/var/lib/alnair/workspace/"] },
        "mounts": [{ "destination": "/var/lib/alnair/workspace", "source": "/host/abc" }]
    }));
    let read = |path: &Path| (path == Path::new("/host/abc/limits")).then(|| "vmem:1048576".to_owned());
    let memory = request(&spec, Path::new("/run/vgpu"), read).unwrap().for_gpu(None, None).memory;
    assert_eq!(memory.map(|said| said.value), Some(1 << 20));
}

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

#[test]
fn who_may_undo_mounts_is_let_in_or_not() {
    let spec = Spec(json!({
        "annotations": { "nvidia.com/gpumem": "1" },
        "process": { "capabilities": { "bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"] } }
    }));
    let decided = |policy: &str| {
        decide(&spec, &request(&spec, Path::new("/run/vgpu"), nothing_to_read).unwrap(), &Policy::parse(policy).unwrap(), None)
    };
    assert!(decided("").unwrap().is_some());
    let message = decided("privileged = \"refuse\"").unwrap_err().to_string();
    assert!(message.contains("CAP_SYS_ADMIN"), "{message}");
}
