//! The plugin between a kubelet and an API server.

use crate::common::api_server::{Cluster, NODE, SLICES};
use crate::common::gpus::{Gpus, device, uuid};
use crate::common::kubelet::{Kubelet, uid};
use crate::common::plugin::{Node, Program, Threaded, allocate, cdi_ids};
use crate::common::wait_for;
use serde_json::{Value, json};
use std::sync::Arc;
use vgpu_dra::proto::HealthStatus;
use vgpu_dra::storage::LocalStorage;

#[test]
fn plugin_registers_and_publishes_the_machines_gpus() {
    let (node, cluster) = (Node::default(), Cluster::start());
    let _plugin = Threaded::start(&node, &cluster, Gpus::with([0, 1]));
    let kubelet = Kubelet::register(&node.path("registry"));
    assert_eq!((kubelet.info.r#type.as_str(), kubelet.info.name.as_str()), ("DRAPlugin", "gpu.vgpu"));
    assert_eq!(kubelet.info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]);
    let devices = wait_for("two devices", || Some(cluster.devices()).filter(|devices| devices.len() == 2));
    let attributes = &devices[&device(0)]["attributes"];
    for (key, value) in [
        ("uuid", json!({ "string": uuid(0) })),
        ("productName", json!({ "string": "Simulated GPU" })),
        ("architecture", json!({ "string": "Hopper" })),
        ("driverVersion", json!({ "version": "580.95.5" })),
        ("cudaDriverVersion", json!({ "version": "13.0.0" })),
        ("resource.kubernetes.io/pcieRoot", json!({ "string": "pci0000:00" })),
        ("numaNode", json!({ "int": 0 })),
    ] {
        assert_eq!(attributes[key], value, "{key}");
    }
    let slice = &cluster.slices()[0];
    assert_eq!(slice["spec"]["nodeName"], NODE);
    assert_eq!(slice["spec"]["pool"], json!({ "name": NODE, "generation": 1, "resourceSliceCount": 1 }));
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert_eq!(cluster.refused(), [] as [String; 0]);
}

#[test]
fn claims_are_prepared_and_unprepared_in_both_api_versions() {
    let (node, cluster) = (Node::default(), Cluster::start());
    let _plugin = Threaded::start(&node, &cluster, Gpus::with([0]));
    let kubelet = Kubelet::register(&node.path("registry"));
    allocate(&cluster, "a", &[("gpu", 0, "10Gi", "30")]);
    let devices = kubelet.prepare("a").unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!((devices[0].pool_name.as_str(), devices[0].device_name.as_str()), (NODE, device(0).as_str()));
    assert_eq!(
        (devices[0].request_names.as_slice(), devices[0].share_id.as_deref()),
        (["gpu".to_owned()].as_slice(), Some(format!("{}-0", uid("a")).as_str()))
    );
    let own = format!("vgpu.io/claim={}-0", uid("a"));
    assert_eq!(cdi_ids(&devices, None), [format!("nvidia.com/gpu={}", uuid(0)), own, "vgpu.io/hooks=enforce".to_owned()]);
    let by_beta = kubelet.prepare_by("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources", "a").unwrap();
    assert_eq!(by_beta, devices, "a repeated request must return the same devices");
    assert_eq!(node.files().len(), 3);
    kubelet.unprepare("a").unwrap();
    kubelet.unprepare("a").unwrap();
    assert_eq!(node.files(), ["vgpu.io-hooks.json"]);
    assert!(kubelet.prepare_by("/k8s.io.kubelet.pkg.apis.dra.v9.DRAPlugin/NodePrepareResources", "a").is_err());
}

#[test]
fn failed_prepare_returns_an_error_and_leaves_no_files() {
    let (node, cluster) = (Node::default(), Cluster::start());
    let _plugin = Threaded::start(&node, &cluster, Gpus::with([0]));
    let kubelet = Kubelet::register(&node.path("registry"));
    allocate(&cluster, "gone", &[("gpu", 7, "10Gi", "30")]);
    allocate(&cluster, "large", &[("gpu", 0, "25Gi", "30")]);
    cluster.put(&crate::common::api_server::claim_path("other"), json!({ "metadata": { "name": "other", "uid": "another" }, "spec": {} }));
    for (claim, expected) in
        [("gone", "not responding"), ("large", "bytes of memory: expected"), ("other", "was recreated"), ("none", "not found")]
    {
        let error = kubelet.prepare(claim).unwrap_err();
        assert!(error.contains(expected), "{claim}: {error}");
    }
    assert_eq!(node.files(), ["vgpu.io-hooks.json"]);
}

fn effects(devices: &std::collections::BTreeMap<String, Value>, gpu: usize) -> Option<Value> {
    devices.get(&device(gpu)).map(|device| device["taints"][0]["effect"].clone())
}

#[test]
fn gpu_that_disappears_is_tainted_and_not_prepared() {
    let (node, cluster, gpus) = (Node::default(), Cluster::start(), Gpus::with([0, 1, 2]));
    let _plugin = Threaded::start_with(node.options(&["--evict-after", "3"]), &cluster, gpus.clone(), Arc::new(LocalStorage));
    let kubelet = Kubelet::register(&node.path("registry"));
    allocate(&cluster, "a", &[("gpu", 1, "10Gi", "30")]);
    kubelet.prepare("a").unwrap();
    wait_for("three devices", || (cluster.devices().len() == 3).then_some(()));
    gpus.set([0]);
    // New pods stay away at once. Pods that use it are evicted only if it stays away.
    wait_for("the taint NoSchedule", || (effects(&cluster.devices(), 1) == Some(json!("NoSchedule"))).then_some(()));
    let devices = wait_for("the taint NoExecute", || {
        Some(cluster.devices()).filter(|devices| devices.len() == 2 && effects(devices, 1) == Some(json!("NoExecute")))
    });
    assert_eq!(effects(&devices, 1), Some(json!("NoExecute")), "pods that use it must be evicted");
    assert_eq!(effects(&devices, 0), Some(Value::Null));
    assert!(kubelet.prepare("a").unwrap_err().contains("not responding"), "no further container may start on it");
    // The kubelet shows it in the status of pods.
    let unhealthy = |gpu| kubelet.health(&device(gpu)).filter(|(health, _)| *health == HealthStatus::Unhealthy);
    let (_, message) = wait_for("the health report", || unhealthy(1));
    assert!(message.contains("not found"), "{message}");
    assert_eq!(kubelet.health(&device(0)), Some((HealthStatus::Healthy, String::new())));
    // Without a pod that uses it, the device is withdrawn.
    kubelet.unprepare("a").unwrap();
    wait_for("the device to be withdrawn", || (cluster.devices().len() == 1).then_some(()));
    // It comes back. Then the driver fails as a whole.
    gpus.set([0, 1]);
    wait_for("the device to come back", || (effects(&cluster.devices(), 1) == Some(Value::Null)).then_some(()));
    gpus.fail();
    wait_for("no device", || cluster.slices().is_empty().then_some(()));
    gpus.set([0]);
    wait_for("the device to come back", || (cluster.devices().len() == 1).then_some(()));
    assert_eq!(cluster.refused(), [] as [String; 0]);
}

/// Waits until the source was polled several times more.
fn wait_for_polls(gpus: &Gpus) {
    let before = gpus.polls();
    wait_for("further polls", || (gpus.polls() > before + 4).then_some(()));
}

#[test]
fn silent_nvml_never_evicts_pods() {
    let (node, cluster, gpus) = (Node::default(), Cluster::start(), Gpus::with([0]));
    let plugin = Threaded::start_with(node.options(&["--evict-after", "0"]), &cluster, gpus.clone(), Arc::new(LocalStorage));
    let kubelet = Kubelet::register(&node.path("registry"));
    allocate(&cluster, "a", &[("gpu", 0, "10Gi", "30")]);
    kubelet.prepare("a").unwrap();
    wait_for("a healthy GPU", || (kubelet.health(&device(0))?.0 == HealthStatus::Healthy).then_some(()));
    gpus.fail();
    wait_for_polls(&gpus);
    assert_eq!(effects(&cluster.devices(), 0), Some(json!("NoSchedule")), "its containers may still work");
    let (health, message) = kubelet.health(&device(0)).unwrap();
    assert!(health == HealthStatus::Unknown && message.contains("no driver"), "{message}");
    gpus.set([0]);
    wait_for("no taint", || (effects(&cluster.devices(), 0) == Some(Value::Null)).then_some(()));
    // The plugin ends while the kubelet still watches its health.
    drop(plugin);
}

#[test]
fn missing_gpu_evicts_pods_only_if_the_operator_wants_it() {
    let (node, cluster, gpus) = (Node::default(), Cluster::start(), Gpus::with([0, 1]));
    let _plugin = Threaded::start(&node, &cluster, gpus.clone());
    let kubelet = Kubelet::register(&node.path("registry"));
    allocate(&cluster, "a", &[("gpu", 1, "10Gi", "30")]);
    kubelet.prepare("a").unwrap();
    gpus.set([0]);
    wait_for_polls(&gpus);
    assert_eq!(effects(&cluster.devices(), 1), Some(json!("NoSchedule")));
    assert_eq!(kubelet.health(&device(1)).unwrap().0, HealthStatus::Unhealthy);
}

#[test]
fn gpu_with_a_fault_gets_no_new_pods() {
    let (node, cluster, gpus) = (Node::default(), Cluster::start(), Gpus::with([0, 1]));
    let _plugin = Threaded::start_with(node.options(&["--evict-after", "0"]), &cluster, gpus.clone(), Arc::new(LocalStorage));
    let kubelet = Kubelet::register(&node.path("registry"));
    wait_for("two devices", || (cluster.devices().len() == 2).then_some(()));
    gpus.set_fault(Some(1));
    wait_for("the taint", || (effects(&cluster.devices(), 1) == Some(json!("NoSchedule"))).then_some(()));
    assert_eq!(
        (&cluster.devices()[&device(1)]["taints"][0]["key"], effects(&cluster.devices(), 0)),
        (&json!("gpu.vgpu/fault"), Some(Value::Null))
    );
    let (_, message) = wait_for("bad health", || kubelet.health(&device(1)).filter(|(health, _)| *health == HealthStatus::Unhealthy));
    assert!(message.contains("ECC"), "{message}");
    gpus.set_fault(None);
    wait_for("no taint", || (effects(&cluster.devices(), 1) == Some(Value::Null)).then_some(()));
}

#[test]
fn hanging_nvml_stops_neither_the_start_nor_unprepare() {
    let (node, cluster, gpus) = (Node::default(), Cluster::start(), Gpus::with([0]));
    allocate(&cluster, "a", &[("gpu", 0, "10Gi", "30")]);
    {
        let _plugin = Threaded::start(&node, &cluster, gpus.clone());
        Kubelet::register(&node.path("registry")).prepare("a").unwrap();
    }
    gpus.hang(true);
    let polls = gpus.polls();
    let plugin = Threaded::start(&node, &cluster, gpus.clone());
    let kubelet = Kubelet::register(&node.path("registry"));
    let (_, message) = wait_for("unknown health", || kubelet.health(&device(0)).filter(|(health, _)| *health == HealthStatus::Unknown));
    assert!(message.contains("no answer within 3 s"), "{message}");
    assert_eq!(gpus.polls(), polls + 1, "a poll that hangs must not be joined by others");
    kubelet.unprepare("a").unwrap();
    gpus.hang(false);
    wait_for("the device", || (effects(&cluster.devices(), 0) == Some(Value::Null)).then_some(()));
    drop(plugin);
}

#[test]
fn refused_requests_are_repeated_with_growing_waits() {
    use std::time::Duration;
    let (node, cluster) = (Node::default(), Cluster::start());
    cluster.forbid(Some(SLICES));
    let _plugin = Threaded::start(&node, &cluster, Gpus::with([0]));
    let attempts = |method: &str| {
        let wanted = format!("{method} {SLICES}");
        let log = cluster.log().into_iter().zip(cluster.times());
        log.filter(|(line, _)| *line == wanted).map(|(_, at)| at).collect::<Vec<_>>()
    };
    for method in ["GET", "WATCH"] {
        let times = wait_for("attempts", || Some(attempts(method)).filter(|times| times.len() >= 4));
        for (failures, pair) in times.windows(2).enumerate() {
            assert!(pair[1] - pair[0] >= Duration::from_millis(500 << failures), "{method}, after {} failures: {times:?}", failures + 1);
        }
    }
    cluster.forbid(None);
    wait_for("the device", || (cluster.devices().len() == 1).then_some(()));
}

#[test]
fn health_and_metrics_are_served() {
    use std::io::{Read, Write};
    let (node, cluster) = (Node::default(), Cluster::start());
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let _plugin = Threaded::start_with(node.options(&["--listen", &address]), &cluster, Gpus::with([0]), Arc::new(LocalStorage));
    let kubelet = Kubelet::register(&node.path("registry"));
    allocate(&cluster, "a", &[("gpu", 0, "10Gi", "30")]);
    kubelet.prepare("a").unwrap();
    kubelet.prepare("none").unwrap_err();
    wait_for("a device", || (cluster.devices().len() == 1).then_some(()));
    let idle: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    assert!(get("/healthz").starts_with("HTTP/1.1 200 "));
    let metrics = wait_for("the metrics", || Some(get("/metrics")).filter(|text| text.contains("vgpu_dra_published 1")));
    for line in ["vgpu_dra_devices 1", "vgpu_dra_claims 1", "vgpu_dra_claim_failures_total{request=\"prepare\"} 1"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(get("/").starts_with("HTTP/1.1 404 "));
    drop(idle);
}

#[test]
fn gpu_that_disappears_while_the_plugin_is_down_is_tainted() {
    let (node, cluster) = (Node::default(), Cluster::start());
    allocate(&cluster, "a", &[("gpu", 1, "10Gi", "30")]);
    {
        let _plugin = Threaded::start(&node, &cluster, Gpus::with([0, 1, 2]));
        let kubelet = Kubelet::register(&node.path("registry"));
        wait_for("three devices", || (cluster.devices().len() == 3).then_some(()));
        kubelet.prepare("a").unwrap();
    }
    let _plugin = Threaded::start(&node, &cluster, Gpus::with([0]));
    wait_for("the taint", || (effects(&cluster.devices(), 1) == Some(json!("NoSchedule"))).then_some(()));
    assert_eq!(cluster.devices().len(), 2, "a missing device that no claim uses must be withdrawn");
    assert_eq!(cluster.refused(), [] as [String; 0]);
}

#[test]
fn gone_gpu_is_withdrawn_if_the_api_server_drops_taints() {
    let (node, cluster, gpus) = (Node::default(), Cluster::start(), Gpus::with([0, 1]));
    cluster.drop_fields(&["taints"]);
    let _plugin = Threaded::start(&node, &cluster, gpus.clone());
    let kubelet = Kubelet::register(&node.path("registry"));
    allocate(&cluster, "a", &[("gpu", 1, "10Gi", "30")]);
    kubelet.prepare("a").unwrap();
    gpus.set([0]);
    wait_for("the device to be withdrawn", || (cluster.devices().len() == 1).then_some(()));
}

#[test]
fn deleted_slices_are_recreated() {
    let (node, cluster) = (Node::default(), Cluster::start());
    let options = vgpu_dra::options::Options { poll_interval_s: 1000, ..node.options(&[]) };
    let _plugin = Threaded::start_with(options, &cluster, Gpus::with([0]), Arc::new(LocalStorage));
    let first = wait_for("a slice", || cluster.slices().pop());
    wait_for("the watch", || cluster.log().contains(&format!("WATCH {SLICES}")).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(100));
    let name = first["metadata"]["name"].as_str().unwrap();
    cluster.remove(&format!("{SLICES}/{name}"));
    wait_for("another slice", || cluster.slices().pop().filter(|slice| slice["metadata"]["name"] != name));
}

#[test]
fn dropped_fields_do_not_cause_repeated_writes() {
    let (node, cluster) = (Node::default(), Cluster::start());
    cluster.drop_fields(&["allowMultipleAllocations", "capacity"]);
    let _plugin = Threaded::start(&node, &cluster, Gpus::with([0]));
    wait_for("a slice", || cluster.slices().pop());
    // Several polls of the GPUs.
    std::thread::sleep(std::time::Duration::from_secs(4));
    let writes = cluster.log().iter().filter(|line| line.starts_with("POST") || line.starts_with("PUT")).count();
    assert_eq!(writes, 1);
    let lists = cluster.log().iter().filter(|line| *line == &format!("GET {SLICES}")).count();
    assert!(lists <= 5, "{lists} lists of the slices");
}

#[test]
fn ending_plugin_leaves_its_successors_sockets() {
    let (node, cluster) = (Node::default(), Cluster::start());
    let first = Threaded::start(&node, &cluster, Gpus::with([0]));
    Kubelet::register(&node.path("registry"));
    let second = Threaded::start(&node, &cluster, Gpus::with([0]));
    wait_for("the second plugin", || (cluster.log().iter().filter(|line| *line == &format!("GET {SLICES}")).count() > 3).then_some(()));
    drop(first);
    allocate(&cluster, "a", &[("gpu", 0, "10Gi", "30")]);
    Kubelet::register(&node.path("registry")).prepare("a").unwrap();
    drop(second);
    assert_eq!(std::fs::read_dir(node.path("registry")).unwrap().count(), 0);
}

#[test]
fn two_instances_lose_no_claims() {
    let (node, cluster) = (Node::default(), Cluster::start());
    for name in ["a", "b", "c"] {
        allocate(&cluster, name, &[("gpu", 0, "1Gi", "0")]);
    }
    let start = |instance: &str| {
        let plugin = Threaded::start_with(node.options(&["--instance", instance]), &cluster, Gpus::with([0]), Arc::new(LocalStorage));
        (plugin, Kubelet::register_instance(&node.path("registry"), instance))
    };
    let (old, old_kubelet) = start("old");
    old_kubelet.prepare("a").unwrap();
    let (new, new_kubelet) = start("new");
    // Each instance changes claims that the other one has recorded.
    std::thread::scope(|scope| {
        scope.spawn(|| old_kubelet.prepare("b").unwrap());
        scope.spawn(|| new_kubelet.prepare("c").unwrap());
    });
    new_kubelet.unprepare("a").unwrap();
    drop(old);
    assert!(Kubelet::register_instance(&node.path("registry"), "new").prepare("b").is_ok(), "the successor's sockets stay");
    drop(new);
    let (_last, kubelet) = start("last");
    let files: Vec<String> = node.files().into_iter().filter(|name| name.contains("claim_")).collect();
    assert_eq!(files, ["b", "c"].map(|name| format!("vgpu.io-claim_{}.json", uid(name))));
    for name in ["b", "c"] {
        kubelet.unprepare(name).unwrap();
    }
    assert_eq!(node.files(), ["vgpu.io-hooks.json"]);
}

#[test]
fn sockets_of_killed_instances_are_removed() {
    let (node, cluster) = (Node::default(), Cluster::start());
    for (folder, name) in [("registry", "gpu.vgpu-killed-reg@kubelet.sock"), ("registry", "other-reg.sock"), ("plugin", "dra-killed.sock")]
    {
        std::fs::create_dir_all(node.path(folder)).unwrap();
        // Nobody listens any more.
        drop(std::os::unix::net::UnixListener::bind(node.path(folder).join(name)).unwrap());
    }
    let _plugin = Threaded::start_with(node.options(&["--instance", "new"]), &cluster, Gpus::with([0]), Arc::new(LocalStorage));
    Kubelet::register_instance(&node.path("registry"), "new");
    let mut names: Vec<String> = ["registry", "plugin"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(node.path(folder)).unwrap())
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".sock"))
        .collect();
    names.sort();
    assert_eq!(names, ["dra-new.sock", "gpu.vgpu-new-reg@kubelet.sock", "other-reg.sock"]);
}

#[test]
fn show_prints_the_devices() {
    use vgpu_dra::discovery::GpuSource;
    let node = Node::default();
    let inventory = node.path("gpus.json");
    std::fs::write(&inventory, serde_json::to_vec(&Gpus::with([0, 1]).discover().unwrap()).unwrap()).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vgpu-dra"));
    let output = command.args(["--node", NODE, "--show", "--inventory"]).arg(&inventory).output().unwrap();
    let devices: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((devices.as_array().unwrap().len(), &devices[1]["name"]), (2, &json!(device(1))));
    std::fs::write(&inventory, "{").unwrap();
    let output = command.output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("gpus.json"), "{output:?}");
}

#[test]
fn log_events_have_fields_in_json() {
    use std::io::{BufRead, BufReader};
    let (node, cluster) = (Node::default(), Cluster::start());
    let stderr = node.path("stderr");
    let program = Program::start_logging(&node, &cluster, &["--log-format", "json"], &stderr);
    let error = Kubelet::register(&node.path("registry")).prepare("a").unwrap_err();
    drop(program);
    let lines = BufReader::new(std::fs::File::open(&stderr).unwrap()).lines();
    let events: Vec<Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let refused = events.iter().find(|event| event["message"] == "claim not prepared").unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!((&refused["level"], &refused["target"]), (&json!("WARN"), &json!("vgpu_dra::kubelet")));
    assert_eq!((&refused["claim"], &refused["uid"], &refused["error"]), (&json!("team/a"), &json!(uid("a")), &json!(error)));
}
