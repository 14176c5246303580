use serde_json::{Value, json};

use super::*;
use crate::engine::Engine;

fn no_file(_: &Path) -> Option<String> {
    None
}

fn is_gpu(spec: Value, policy: &str) -> bool {
    let spec = Spec::from(spec);
    let state_dir = Path::new("/run/vgpu");
    is_gpu_container(&spec, &request(&spec, state_dir, no_file).unwrap(), &Policy::parse(policy).unwrap(), state_dir)
}

#[test]
fn gpu_containers() {
    let env = |entry: &str| json!({ "process": { "env": [entry] } });
    let cases = [
        ("no GPU", json!({ "linux": { "devices": [{ "path": "/dev/fuse" }] } }), false),
        ("an annotation", json!({ "annotations": { "nvidia.com/gpumem": "1024" } }), true),
        ("a variable of HAMi", env("CUDA_DEVICE_MEMORY_LIMIT=1g"), true),
        ("all GPUs visible", env("NVIDIA_VISIBLE_DEVICES=all"), true),
        ("none visible", env("NVIDIA_VISIBLE_DEVICES=none"), false),
        ("void visible", env("NVIDIA_VISIBLE_DEVICES=void"), false),
        ("an empty list visible", env("NVIDIA_VISIBLE_DEVICES="), false),
        ("an old image, which NVIDIA's toolkit gives all GPUs", env("CUDA_VERSION=8.0"), true),
        ("a GPU of Docker Swarm", env("DOCKER_RESOURCE_GPU=0"), true),
        ("a device node", json!({ "linux": { "devices": [{ "path": "/dev/nvidia0" }] } }), true),
        ("CDI's control node", json!({ "linux": { "devices": [{ "path": "/dev/nvidiactl" }] } }), true),
        ("a mounted device node", json!({ "mounts": [{ "destination": "/x", "source": "/dev/nvidia-uvm" }] }), true),
        ("all device nodes mounted", json!({ "mounts": [{ "destination": "/dev", "source": "/dev" }] }), true),
        ("its own /dev", json!({ "mounts": [{ "destination": "/dev", "source": "tmpfs" }] }), false),
        ("ctr --gpus", json!({ "hooks": { "prestart": [{ "path": "/usr/bin/nvidia-container-cli" }] } }), true),
        (
            "a device node under another name",
            json!({ "linux": { "devices": [{ "path": "/dev/x", "type": "c", "major": 195, "minor": 0 }] } }),
            true,
        ),
        (
            "the right to make and use nodes of the driver",
            json!({ "linux": { "resources": { "devices": [{ "allow": true, "type": "c", "major": 195, "access": "rwm" }] } } }),
            true,
        ),
        (
            "the right to make nodes",
            json!({ "linux": { "resources": { "devices": [{ "allow": false }, { "allow": true, "type": "c", "access": "m" }] } } }),
            false,
        ),
        ("a CDI device", json!({ "annotations": { "cdi.k8s.io/x": "nvidia.com/gpu=all" } }), true),
        ("another vendor's CDI device", json!({ "annotations": { "cdi.k8s.io/x": "vendor.com/net=0" } }), false),
        (
            "a device list of mounts",
            json!({ "mounts": [{ "destination": "/var/run/nvidia-container-devices/all", "source": "/dev/null" }] }),
            true,
        ),
        ("an extra device node of the policy", json!({ "linux": { "devices": [{ "path": "/dev/simgpu" }] } }), true),
    ];
    for (description, spec, expected) in cases {
        assert_eq!(is_gpu(spec, "extra_device_nodes = [\"/dev/simgpu\"]"), expected, "{description}");
    }
    assert!(!is_gpu(json!({ "linux": { "devices": [{ "path": "/dev/simgpu" }] } }), ""));
}

/// It counts as a GPU where there are some, which a test cannot tell.
#[test]
fn rules_for_all_devices() {
    for (rule, expected) in [
        (json!({ "allow": true, "access": "rwm" }), true),
        (json!({ "allow": true, "type": "a" }), true),
        (json!({ "allow": true, "type": "c", "major": -1, "minor": -1, "access": "rw" }), true),
        (json!({ "allow": true, "type": "c", "major": null, "access": "r" }), true),
        (json!({ "allow": false, "access": "rwm" }), false),
        (json!({ "allow": true, "type": "b", "access": "rwm" }), false),
        // Docker's and containerd's own: nodes may be made, and not used.
        (json!({ "allow": true, "type": "c", "access": "m" }), false),
        (json!({ "allow": true, "type": "c", "major": 136, "access": "rwm" }), false),
    ] {
        let spec = Spec::from(json!({ "linux": { "resources": { "devices": [{ "allow": false }, rule] } } }));
        assert_eq!(spec.may_use_all_devices(), expected, "{rule}");
        assert!(!expected || is_gpu(spec.json, "") == is_driver_loaded(), "{rule}");
    }
}

#[test]
fn sandboxes_have_no_gpu() {
    let sandbox = |more: Value| {
        let mut json = json!({ "annotations": { "nvidia.com/gpumem": "1024" } });
        for (key, value) in more.as_object().unwrap() {
            json[key] = value.clone();
        }
        json["annotations"]["io.kubernetes.cri.container-type"] = json!("sandbox");
        json["annotations"]["io.kubernetes.cri.sandbox-id"] = json!("0a1b");
        is_sandbox(&Spec { json, engine: Engine::Containerd }, "0a1b", &Policy::default(), Path::new("/run/vgpu"))
    };
    assert!(sandbox(json!({ "process": { "env": ["NVIDIA_VISIBLE_DEVICES=void"] } })), "with its pod's request");
    for (description, more) in [
        ("a device node", json!({ "linux": { "devices": [{ "path": "/dev/nvidia0" }] } })),
        ("a variable", json!({ "process": { "env": ["NVIDIA_VISIBLE_DEVICES=0"] } })),
        ("a hook", json!({ "hooks": { "prestart": [{ "path": "/usr/bin/nvidia-container-runtime-hook" }] } })),
        ("a claim", json!({ "mounts": [{ "destination": "/x", "source": "/run/vgpu/claims/uid" }] })),
        ("CDI", json!({ "annotations": { "cdi.k8s.io/x": "nvidia.com/gpu=0" } })),
    ] {
        assert!(!sandbox(more), "{description}");
    }
}

#[test]
fn alnairs_limits_file_is_found_through_its_mount() {
    let spec = Spec::from(json!({
        "process": { "env": ["ALNAIR_WORKSPACE_PATH=/var/lib/alnair/workspace/"] },
        "mounts": [{ "destination": "/var/lib/alnair/workspace", "source": "/host/abc" }]
    }));
    let read = |path: &Path| (path == Path::new("/host/abc/limits")).then(|| "vmem:1048576".to_owned());
    let memory = request(&spec, Path::new("/run/vgpu"), read).unwrap().for_gpu(None, None).memory;
    assert_eq!(memory.map(|memory| memory.value.get()), Some(1 << 20));
}

#[test]
fn privileged_containers_are_refused_if_the_policy_says_so() {
    let spec = Spec::from(json!({
        "annotations": { "nvidia.com/gpumem": "1" },
        "process": { "capabilities": { "bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"] } }
    }));
    let decided =
        |policy: &str| decide(&spec, &request(&spec, Path::new("/run/vgpu"), no_file).unwrap(), &Policy::parse(policy).unwrap(), None);
    assert!(decided("").unwrap().is_some());
    let message = decided("privileged = \"refuse\"").unwrap_err().to_string();
    assert!(message.contains("CAP_SYS_ADMIN"), "{message}");
}
