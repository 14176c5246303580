use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::account::Moves;
use crate::snapshot::{ContainerState, Gpu, Share, Unlimited};

const ALL: Dialect = Dialect { scheduler: true, legacy: true };

fn snapshot() -> Snapshot {
    let uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    let gpu = Gpu {
        index: 3,
        uuid: uuid.to_owned(),
        name: "H200".to_owned(),
        memory: 140 << 30,
        memory_used: Some(5 << 30),
        utilization: Some(80),
        processes_known: true,
        unlimited: Vec::new(),
    };
    let busy = Share {
        uuid: uuid.to_owned(),
        memory_limit: Some(35 << 30),
        cores: Some(30),
        charged: 700,
        overhead: 518,
        held: Some(690),
        refused: 4,
        first_refusal: Some(90.0),
        used_ns: 2_500_000_000,
        throttled_ns: 1_500_000_000,
        turn_changes: 9,
        moves_out: Moves { count: 12, bytes: 600, took_ns: 4_250_000_000 },
        moves_in: Moves { count: 11, bytes: 550, took_ns: 3_500_000_000 },
        utilization: Some(29.5),
        last_kernel: Some(97.5),
        ..Share::default()
    };
    let new = Share { uuid: uuid.to_owned(), memory_limit: Some(1 << 30), ..Share::default() };
    let container = |id: &str, name: Option<&str>, share| ContainerState {
        id: id.to_owned(),
        dir_name: id.to_owned(),
        container: name.map(str::to_owned),
        pod: name.map(|_| "web-\"0\"\\\n".to_owned()),
        namespace: name.map(|_| "default".to_owned()),
        created: 50,
        gpus: vec![share],
        ..ContainerState::default()
    };
    let containers = vec![container("aaa", Some("app"), busy), container("bbb", None, new)];
    Snapshot { time: 100.0, nvml_error: None, gpus: vec![gpu], containers }
}

fn rendered(snapshot: &Snapshot, dialect: Dialect) -> String {
    let tally = |id: &str| if id == "aaa" { Tally { found: [2, 1, 3], lasting: [1, 0, 1], ended: 1 } } else { Tally::default() };
    text(snapshot, "node1", dialect, &[("enforce", 3)], tally)
}

/// Returns metric names with the labels of their samples.
fn names_and_labels(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let labels = rest.split("=\"").filter_map(|part| part.rsplit([',', '{', '}']).next()).map(|label| label.trim_start_matches('"'));
        let labels = labels.filter(|label| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        found.entry(name.to_owned()).or_default().extend(labels.map(str::to_owned));
    }
    found
}

#[test]
fn values_come_from_the_snapshot() {
    let text = rendered(&snapshot(), ALL);
    let pod = r#"web-\"0\"\\\n"#;
    let gpu = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    let of_app = format!(r#"{{container="app",container_id="aaa",device_uuid="{gpu}",namespace="default",pod="{pod}"}}"#);
    let moves = |direction| of_app.replace(",namespace", &format!(r#",direction="{direction}",namespace"#));
    let (out, back) = (moves("out"), moves("in"));
    let hami = format!(r#"{{container="app",device_uuid="{gpu}",namespace="default",pod="{pod}",vdevice_index="0",zone="vGPU"}}"#);
    for line in [
        format!("vgpu_throttled_seconds_total{of_app} 1.5"),
        format!("vgpu_gpu_seconds_total{of_app} 2.5"),
        format!("vgpu_memory_charged_bytes{of_app} 700"),
        format!("vgpu_memory_held_bytes{of_app} 690"),
        format!("vgpu_compute_limit_ratio{of_app} 0.3"),
        format!("vgpu_turn_changes_total{of_app} 9"),
        format!("vgpu_memory_moves_total{out} 12"),
        format!("vgpu_memory_moves_total{back} 11"),
        format!("vgpu_memory_moved_bytes_total{out} 600"),
        format!("vgpu_memory_moved_bytes_total{back} 550"),
        format!("vgpu_memory_move_seconds_total{out} 4.25"),
        format!("vgpu_memory_move_seconds_total{back} 3.5"),
        format!("hami_vgpu_memory_used_bytes{hami} 700"),
        format!("hami_vgpu_memory_context_bytes{hami} 518"),
        format!("hami_vgpu_memory_buffer_bytes{hami} 182"),
        format!("hami_container_device_utilization_ratio{hami} 29.5"),
        format!("hami_container_last_kernel_elapsed_seconds{hami} 2"),
        format!(
            r#"hami_host_gpu_utilization_ratio{{device_index="3",device_type="NVIDIA-H200",device_uuid="{gpu}",node="node1",zone="vGPU"}} 80"#
        ),
        format!(
            r#"hami_node_gpu_memory_allocated_ratio{{device_index="3",device_type="NVIDIA-H200",device_uuid="{gpu}",node="node1",zone="vGPU"}} {}"#,
            36.0 / 140.0
        ),
        "vgpu_nvml_up 1".to_owned(),
        r#"vgpu_monitor_restarts_total{part="enforce"} 3"#.to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.contains(r#"vgpu_violations_total{container="app",container_id="aaa",kind="over_limit""#));
    assert!(text.contains(r#"reason="limit"} 4"#));
}

#[test]
fn processes_without_limits_are_counted_for_each_gpu() {
    let process = |pid, held| Unlimited { pid, name: "fill".to_owned(), held, observed: None };
    let mut snapshot = snapshot();
    let values = |snapshot: &Snapshot| {
        let text = rendered(snapshot, ALL);
        let its = |line: &&str| line.starts_with("vgpu_unlimited_");
        text.lines().filter(its).map(|line| line.replace(&snapshot.gpus[0].uuid, "GPU")).collect::<Vec<_>>()
    };
    let expected = |processes: u32, memory: u64| {
        let line = |name, value| format!(r#"vgpu_unlimited_{name}{{device_uuid="GPU"}} {value}"#);
        [line("processes", u64::from(processes)), line("memory_bytes", memory)]
    };
    assert_eq!(values(&snapshot), expected(0, 0));
    snapshot.gpus[0].unlimited = vec![process(7, Some(1 << 30)), process(8, None), process(9, Some(1 << 20))];
    snapshot.containers.clear();
    assert_eq!(values(&snapshot), expected(3, (1 << 30) + (1 << 20)), "also without any container");
    snapshot.gpus[0].processes_known = false;
    assert_eq!(values(&snapshot), [""; 0], "unknown is not none");
}

#[test]
fn containers_have_metrics_from_their_creation() {
    let text = rendered(&snapshot(), ALL);
    for name in ["hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes", "vgpu_throttled_seconds_total", "vgpu_memory_refused_total"]
    {
        let its = |line: &str| line.starts_with(name) && line.contains(r#"container="bbb""#);
        assert!(text.lines().any(its), "{name}");
    }
}

/// HAMi v2.10.0, cmd/vGPUmonitor/metrics.go and cmd/scheduler/metrics.go, and `zone` from the registerer that wraps both.
#[test]
fn hamis_names_and_labels_are_kept() {
    let host = "node device_index device_uuid device_type zone";
    let container = "namespace pod container vdevice_index device_uuid zone";
    let legacy = "podnamespace podname ctrname vdeviceid deviceuuid zone";
    let found = names_and_labels(&rendered(&snapshot(), ALL));
    for (names, labels) in [
        ("hami_host_gpu_memory_used_bytes hami_host_gpu_utilization_ratio", host),
        ("hami_vgpu_memory_used_bytes hami_vgpu_memory_limit_bytes hami_vgpu_memory_context_bytes", container),
        ("hami_vgpu_memory_module_bytes hami_vgpu_memory_buffer_bytes hami_container_device_memory_bytes", container),
        ("hami_container_device_utilization_ratio hami_container_last_kernel_elapsed_seconds", container),
        ("hami_gpu_memory_limit_bytes hami_gpu_shared_count hami_gpu_core_allocated_ratio hami_node_gpu_memory_allocated_ratio", host),
        ("hami_gpu_memory_allocated_bytes", "node device_uuid device_index device_cores device_type zone"),
        ("HostGPUMemoryUsage HostCoreUtilization", "nodeid deviceidx deviceuuid devicetype zone"),
        ("vGPU_device_memory_usage_in_bytes vGPU_device_memory_limit_in_bytes", legacy),
        ("Device_utilization_desc_of_container Device_last_kernel_of_container", legacy),
    ] {
        for name in names.split(' ') {
            let expected: BTreeSet<String> = labels.split(' ').map(str::to_owned).collect();
            assert_eq!(found.get(name), Some(&expected), "{name}");
        }
    }
    let modern = rendered(&snapshot(), Dialect { scheduler: false, legacy: false });
    assert!(!modern.contains("hami_gpu_shared_count") && !modern.contains("HostGPU") && modern.contains("hami_host_gpu"));
}

#[test]
fn a_restarted_container_replaces_its_predecessor() {
    let mut snapshot = snapshot();
    let mut successor = snapshot.containers[0].clone();
    (successor.id, successor.dir_name, successor.gpus[0].charged, successor.gpus[0].held) = ("ccc".to_owned(), "ccc".to_owned(), 42, None);
    snapshot.containers.push(successor);
    let text = rendered(&snapshot, ALL);
    let values = |name: &str| {
        let of_app = |line: &&str| line.starts_with(name) && line.contains(r#""app""#);
        text.lines().filter(of_app).filter_map(|line| line.rsplit(' ').next()).collect::<Vec<_>>()
    };
    assert_eq!(values("hami_vgpu_memory_used_bytes"), ["42"], "the names are the same");
    assert_eq!(values("vgpu_memory_charged_bytes"), ["700", "42"], "the IDs differ");
}

/// Returns the metrics that a Grafana dashboard queries.
fn queried(dashboard: &str) -> BTreeSet<String> {
    let value: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut found = BTreeSet::new();
    let mut left = vec![&value];
    while let Some(value) = left.pop() {
        match value {
            serde_json::Value::Array(items) => left.extend(items),
            serde_json::Value::Object(fields) => {
                let expressions = ["expr", "query"].into_iter().filter_map(|key| fields.get(key)?.as_str());
                let words = expressions.flat_map(|text| text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_'));
                found.extend(words.filter(|word| ["vgpu_", "hami_"].iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned));
                left.extend(fields.values());
            }
            _ => {}
        }
    }
    found
}

#[test]
fn metrics_of_the_dashboard_exist() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/grafana/vgpu.json");
    let queried_names = queried(&std::fs::read_to_string(path).unwrap());
    assert!(queried_names.len() > 8, "{queried_names:?}");
    let found = names_and_labels(&rendered(&snapshot(), Dialect { scheduler: true, legacy: false }));
    let missing: Vec<_> = queried_names.iter().filter(|name| !found.contains_key(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Repeats the checks of `promtool check metrics`: help and type precede the samples of a name, counters and no others end in `_total`, no
/// name or sample occurs twice.
#[test]
fn text_format_is_well_formed() {
    let text = rendered(&snapshot(), Dialect { scheduler: true, legacy: false });
    let (mut helped, mut typed, mut samples) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => assert!(!help.is_empty() && helped.insert(name), "{line}"),
            ["#", "TYPE", name, kind] => assert!(helped.contains(name) && typed.insert(name, kind).is_none(), "{line}"),
            _ => {
                let name = line.split(['{', ' ']).next().unwrap();
                assert_eq!(typed.get(name) == Some(&"counter"), name.ends_with("_total"), "{line}");
                assert!(typed.contains_key(name), "{line}");
                let (sample, figure) = line.rsplit_once(' ').unwrap();
                assert!(figure.parse::<f64>().is_ok() && samples.insert(sample), "{line}");
            }
        }
    }
}
