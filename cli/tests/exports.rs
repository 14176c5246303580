//! Exported formats, read by independent readers: Prometheus metrics and HAMi's shared region.

mod common;
mod readers;

use std::collections::BTreeMap;
use std::process::Stdio;

use common::{Monitor, wait_for};
use readers::{Sample, samples, shared_region};
use vgpu_e2e::{Kit, MIB, Machine, Way, host};
use vgpu_test_harness::{Host, Runtime, can_run};

/// Returns a machine with two GPUs, whose UUIDs end with their index.
fn machine(kit: &Kit) -> Machine {
    Machine::simulated(kit, &["gpus=2", "total=8G", "context=16M"])
}

#[test]
fn metrics_exist_from_creation_for_names_with_special_characters() {
    if !can_run(Runtime::Runc) {
        return;
    }
    let kit = Kit::find();
    let (machine, host) = (machine(&kit), host(&kit, Runtime::Runc));
    host.policy("engine = \"containerd\"");
    let monitor = Monitor::start(&host, &machine);
    // Deletes the container even if the test fails.
    struct Created<'a>(&'a Host, String);
    impl Drop for Created<'_> {
        fn drop(&mut self) {
            let _ = self.0.outcome(self.0.bare_command().args(["delete", "--force", &self.1]));
        }
    }
    let names = ["a \"quoted\" name", "back\\slash\\n", "two\nlines", "{le=\"0\"} 1", "ünïcode→"];
    let mut created = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let pod = [("container-type", "container"), ("container-name", name), ("sandbox-name", "pod 0"), ("sandbox-namespace", name)];
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30").args(&["/bin/true"]);
        let bundle = pod.iter().fold(bundle, |bundle, (key, value)| bundle.annotation(&format!("io.kubernetes.cri.{key}"), value));
        bundle.write();
        let id = format!("vgpu-name-{}-{number}", std::process::id());
        let mut create = host.command();
        create.arg("create").arg("--bundle").arg(bundle.path()).arg(&id).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(create.status().unwrap().success(), "{name:?}");
        created.push((Created(&host, id), bundle));
    }
    let found = wait_for("the metrics of all containers", || {
        let answer = monitor.get("/metrics");
        let found = samples(answer.split_once("\r\n\r\n").unwrap().1);
        Some(found).filter(|found| names.iter().all(|name| found.iter().any(|sample| sample.is_of(name))))
    });
    drop(created);
    for name in names {
        let values = |metric: &str| -> BTreeMap<String, f64> {
            let matching = found.iter().filter(|sample| sample.name == metric && sample.is_of(name) && sample.label("namespace") == name);
            matching.map(|sample| (sample.label("device_uuid"), sample.value)).collect()
        };
        for (metric, expected) in [
            ("hami_vgpu_memory_limit_bytes", 1024.0 * MIB as f64),
            ("hami_vgpu_memory_used_bytes", 0.0),
            ("hami_container_device_utilization_ratio", 0.0),
            ("vgpu_memory_limit_bytes", 1024.0 * MIB as f64),
            ("vgpu_compute_limit_ratio", 0.3),
            ("vgpu_throttled_seconds_total", 0.0),
        ] {
            let values = values(metric);
            assert_eq!((values.len(), values.values().all(|found| *found == expected)), (2, true), "{metric} of {name:?}: {values:?}");
        }
        let devices = found.iter().filter(|sample| sample.name == "hami_vgpu_memory_limit_bytes" && sample.is_of(name));
        let devices: BTreeMap<String, String> =
            devices.map(|sample| (sample.label("vdevice_index"), sample.label("device_uuid"))).collect();
        assert!(devices["0"].ends_with('0') && devices["1"].ends_with('1') && devices.len() == 2, "{devices:?}");
    }
    let on_host = |sample: &&Sample| sample.name == "hami_host_gpu_memory_used_bytes";
    assert_eq!(found.iter().filter(on_host).count(), 2);
}

#[test]
fn hami_region_lists_every_device_and_process() {
    if !can_run(Runtime::Runc) {
        return;
    }
    let kit = Kit::find();
    let (machine, host) = (machine(&kit), host(&kit, Runtime::Runc));
    let _monitor = Monitor::start(&host, &machine);
    // Two processes on one GPU and one on the other; one of the two is killed later.
    let script = "fill() { /programs/fill --gpu $1 --chunk 16M --max $2 --hold 600 > /tmp/$3 & eval $3=$!; while ! [ -s /tmp/$3 ]; do sleep 0.05; done; }
        fill 0 256M a; fill 0 128M b; fill 1 512M c; echo $a $b $c; read x; kill -9 $b; wait $b; echo killed; read x";
    let env = [
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g"),
        ("CUDA_DEVICE_SM_LIMIT", "30"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/vgpu.cache"),
    ];
    let bundle = env.iter().fold(machine.bundle(), |bundle, (key, value)| bundle.env(key, value));
    let mut running = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", script]));
    let pids: Vec<i32> = running.line().split(' ').map(|pid| pid.parse().unwrap()).collect();
    let state = host.outcome(host.bare_command().args(["state", &running.id])).stdout;
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let path = format!("/proc/{}/root/tmp/vgpu.cache", state["pid"]);
    // Allocations and a context.
    let held = |mib: u64| (mib + 16) * MIB;
    let expected = |all: &[(usize, usize, u64)]| -> BTreeMap<i32, [u64; 2]> {
        let one = |&(which, gpu, mib): &(usize, usize, u64)| {
            let mut by_device = [0; 2];
            by_device[gpu] = held(mib);
            (pids[which], by_device)
        };
        all.iter().map(one).collect()
    };
    let shows = |wanted: &BTreeMap<i32, [u64; 2]>| {
        wait_for("the processes' memory", || {
            let region = shared_region(&std::fs::read(&path).ok()?)?;
            Some(region).filter(|region| region.totals() == *wanted)
        })
    };
    let region = shows(&expected(&[(0, 0, 256), (1, 0, 128), (2, 1, 512)]));
    assert_eq!((region.limits.as_slice(), region.sm_limits.as_slice()), (&[1024 * MIB, 2048 * MIB][..], &[30, 30][..]));
    assert!(region.uuids[0].starts_with("GPU-") && region.uuids[0].ends_with('0') && region.uuids[1].ends_with('1'), "{:?}", region.uuids);
    assert_eq!(region.priority, 1);
    for process in &region.processes {
        let of_host = std::fs::read_to_string(format!("/proc/{}/status", process.host_pid)).unwrap();
        let inner = of_host.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap().split_whitespace().next_back().unwrap();
        assert_eq!(inner, process.pid.to_string());
        let memory = process.used.iter().max_by_key(|memory| memory.total).unwrap();
        assert_eq!((memory.context, memory.context + memory.module + memory.data), (16 * MIB, memory.total));
    }
    running.say("go");
    assert_eq!(running.line(), "killed");
    shows(&expected(&[(0, 0, 256), (2, 1, 512)]));
    // A changed limit appears in the region.
    let mut set = common::vgpu(&host, &machine);
    common::stdout(set.args(["set", &running.id, "--gpumem", "3Gi", "--gpucores", "55"]));
    wait_for("the new limits", || {
        let region = shared_region(&std::fs::read(&path).ok()?)?;
        Some(()).filter(|()| region.limits == [3 << 30, 3 << 30] && region.sm_limits == [55, 55])
    });
}
