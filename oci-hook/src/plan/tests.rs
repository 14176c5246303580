//! From specifications to edits.

use serde_json::{Value, json};

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
