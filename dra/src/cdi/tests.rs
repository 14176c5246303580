use super::*;
use serde_json::Value;

fn config(device_injection: DeviceInjection) -> Config {
    Config {
        spec_dir: "/var/run/cdi".into(),
        state_dir: "/run/vgpu".into(),
        device_injection,
        nvidia_kind: "nvidia.com/gpu".to_owned(),
        hook: Some("/usr/bin/vgpu-hook".into()),
        policy: None,
        mounts: Vec::new(),
        mig_minors: "/nonexistent".into(),
    }
}

fn grant(request: &str, uuid: &str, mib: u64, cores: Option<u32>) -> Grant {
    let text = str::to_owned;
    Grant {
        request: text(request),
        pool: text("node"),
        device: uuid.to_lowercase(),
        share: None,
        uuid: text(uuid),
        memory: mib << 20,
        cores,
        cores_soft: None,
        priority: None,
        oversubscribe: false,
        admin: false,
        minor: Some(3),
        instance: None,
    }
}

fn spec(config: &Config, grants: &[Grant]) -> Value {
    let files = config.claim_files("u", "ns/c", grants).unwrap();
    assert_eq!(files.last().unwrap().0, Path::new("/var/run/cdi/vgpu.io-claim_u.json"));
    serde_json::from_slice(&files.last().unwrap().1).unwrap()
}

fn env(spec: &Value, nth: usize) -> Vec<&str> {
    spec["devices"][nth]["containerEdits"]["env"].as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).collect()
}

#[test]
fn limits_use_hamis_variables_numbered_within_their_request() {
    let config = config(DeviceInjection::Cdi);
    let grants = [grant("a", "GPU-1", 10240, Some(30)), grant("a", "GPU-2", 512, None), grant("b", "GPU-2", 1, None)];
    let spec = spec(&config, &grants);
    assert_eq!(env(&spec, 0), ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "CUDA_DEVICE_SM_LIMIT_0=30"]);
    assert_eq!(env(&spec, 1), ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_DEVICE_MEMORY_LIMIT_1=512m"]);
    assert_eq!(env(&spec, 2), ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_DEVICE_MEMORY_LIMIT_0=1m"]);
    assert_eq!(config.device_ids("u", 1, &grants[1]), ["nvidia.com/gpu=GPU-2", "vgpu.io/claim=u-1", "vgpu.io/hooks=enforce"]);
    let mount = &spec["devices"][1]["containerEdits"]["mounts"][0];
    assert_eq!(
        (&mount["hostPath"], &mount["containerPath"]),
        (&Value::from("/run/vgpu/claims/u-1.json"), &Value::from("/usr/local/vgpu/claims/u-1.json"))
    );
}

#[test]
fn share_file_parses_as_the_runtimes_type() {
    let files = config(DeviceInjection::Cdi).claim_files("u", "ns/c", &[grant("a", "GPU-1", 10240, Some(30))]).unwrap();
    let share: Share = serde_json::from_slice(&files[0].1).unwrap();
    assert_eq!((share.claim.as_str(), share.gpu.as_str(), share.memory, share.cores), ("ns/c", "GPU-1", 10240 << 20, Some(30)));
}

#[test]
fn gpu_is_injected_in_each_mode() {
    let grants = [grant("a", "GPU-1", 1, None)];
    let by_runtime = config(DeviceInjection::Runtime);
    assert_eq!(env(&spec(&by_runtime, &grants), 0)[0], "NVIDIA_VISIBLE_DEVICES=GPU-1");
    assert_eq!(by_runtime.device_ids("u", 0, &grants[0]), ["vgpu.io/claim=u-0", "vgpu.io/hooks=enforce"]);
    let mut by_nodes = config(DeviceInjection::Nodes);
    by_nodes.mounts.push(parse_mount("/home/driver:/usr/local/nvidia").unwrap());
    let spec = spec(&by_nodes, &grants);
    let edits = &spec["devices"][0]["containerEdits"];
    let paths: Vec<_> = edits["deviceNodes"].as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia3"]);
    assert_eq!(edits["mounts"][1]["containerPath"], "/usr/local/nvidia");
    assert!(parse_mount("/a").is_err() && parse_mount("a:/b").is_err());
}

#[test]
fn mig_devices_get_their_capability_nodes() {
    let table = "config 1\ngpu3/gi7/access 20\ngpu3/gi7/ci0/access 21\ngpu3/gi70/access 99\n";
    assert_eq!(mig_device_nodes(table, 3, (7, 0)).unwrap(), ["/dev/nvidia-caps/nvidia-cap20", "/dev/nvidia-caps/nvidia-cap21"]);
    assert_eq!(mig_device_nodes(table, 3, (8, 0)), None);
    let mig = Grant { instance: Some((7, 0)), ..grant("a", "MIG-1", 1, None) };
    assert!(config(DeviceInjection::Nodes).claim_files("u", "ns/c", &[mig]).unwrap_err().contains("/nonexistent"));
}

#[test]
fn hook_is_on_the_specification_not_on_its_device() {
    let (path, text) = config(DeviceInjection::Cdi).hook_spec().unwrap();
    assert_eq!(path, Path::new("/var/run/cdi/vgpu.io-hooks.json"));
    let spec: Value = serde_json::from_slice(&text).unwrap();
    let hooks = spec["containerEdits"]["hooks"].as_array().unwrap();
    assert_eq!(hooks.iter().map(|hook| hook["hookName"].as_str().unwrap()).collect::<Vec<_>>(), ["createRuntime"]);
    assert_eq!(spec["devices"][0]["containerEdits"].get("hooks"), None);
    assert_eq!(config(DeviceInjection::Cdi).hook.map(|_| ()), Some(()));
    assert!(Config { hook: None, ..config(DeviceInjection::Cdi) }.hook_spec().is_none());
}

#[test]
fn claim_with_administrative_access_has_the_gpu_and_no_limits() {
    let config = config(DeviceInjection::Cdi);
    let admin = Grant { admin: true, ..grant("a", "GPU-1", 10240, None) };
    assert_eq!(config.claim_files("u", "ns/c", std::slice::from_ref(&admin)).unwrap().len(), 1, "no share");
    let spec = spec(&config, std::slice::from_ref(&admin));
    assert_eq!(env(&spec, 0), ["NVIDIA_VISIBLE_DEVICES=void"]);
    assert_eq!(spec["devices"][0]["containerEdits"].get("mounts"), None);
    assert_eq!(config.device_ids("u", 0, &admin), ["nvidia.com/gpu=GPU-1", "vgpu.io/claim=u-0"], "no hook");
}

#[test]
fn parameters_are_in_the_share() {
    let soft = Grant { cores_soft: Some(50), priority: Some(0), oversubscribe: true, ..grant("a", "GPU-1", 1, Some(30)) };
    let (_, text) = config(DeviceInjection::Cdi).claim_files("u", "ns/c", &[soft]).unwrap().remove(0);
    let share: Share = serde_json::from_slice(&text).unwrap();
    assert_eq!((share.cores_soft, share.priority, share.oversubscribe), (Some(50), Some(0), true));
}
