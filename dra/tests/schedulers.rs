//! Compatibility with HAMi, Volcano and KAI: containers are limited to their scheduler's decision, and the schedulers' monitors find
//! their files.
//!
//! The fixtures are bundles as containerd creates them from the output of these schedulers and their device plugins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use vgpu_config::Policy;
use vgpu_config::limits::{GpuLimits, Which};
use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, hosts};
use vgpu_oci_hook::{bundle, prepare};
use vgpu_test_harness::{Bundle, Host};

const POD: &str = "5b1d6a52-0000-4000-8000-000000000001";

#[derive(Deserialize)]
struct Fixture {
    about: String,
    annotations: BTreeMap<String, String>,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    init: bool,
    env: Vec<String>,
    /// Source, destination, and `ro` or `rw`.
    mounts: Vec<[String; 3]>,
    /// Path at which HAMi's monitor expects its file.
    cache: Option<String>,
    /// Expected limits by the number of the GPU.
    #[serde(default)]
    expect: BTreeMap<String, Expected>,
    /// Expected part of the error that refuses the container.
    refused: Option<String>,
    /// True if the container has no GPU and starts without limits.
    #[serde(default)]
    starts: bool,
}

#[derive(Deserialize)]
struct Expected {
    #[serde(rename = "MiB")]
    mib: u64,
    cores: Option<u32>,
}

/// Creates the files of a node with a scheduler's device plugin.
fn node() -> tempfile::TempDir {
    let node = tempfile::tempdir().unwrap();
    fs::create_dir_all(node.path().join("usr/local/vgpu/containers")).unwrap();
    fs::create_dir_all(node.path().join("tmp/vgpulock")).unwrap();
    for (file, text) in [("libvgpu.so", "theirs"), ("libvgpu.so.v2", "theirs"), ("ld.so.preload", "/usr/local/vgpu/libvgpu.so\n")] {
        fs::write(node.path().join("usr/local/vgpu").join(file), text).unwrap();
    }
    node
}

impl Container {
    fn source(&self, node: &Path, source: &str) -> PathBuf {
        source.replace("$NODE", node.to_str().unwrap()).replace("$UID", POD).into()
    }

    /// Returns the directory of the node that the scheduler's monitor reads.
    fn monitor_dir(&self, node: &Path) -> PathBuf {
        node.join(format!("usr/local/vgpu/containers/{POD}_{}", self.name))
    }

    /// Returns the container's bundle.
    fn bundle(&self, fixture: &Fixture, machine: &Machine, node: &Path) -> Bundle {
        let mut bundle = machine.bundle();
        for (key, value) in &fixture.annotations {
            bundle = bundle.annotation(key, value);
        }
        for (key, value) in [
            ("container-type", "container"),
            ("container-name", &self.name),
            ("sandbox-uid", POD),
            ("sandbox-name", "p"),
            ("sandbox-namespace", "team"),
        ] {
            bundle = bundle.annotation(&format!("io.kubernetes.cri.{key}"), value);
        }
        for entry in &self.env {
            let (key, value) = entry.split_once('=').unwrap();
            bundle = bundle.env(key, value);
        }
        fs::create_dir_all(self.monitor_dir(node)).unwrap();
        for [source, destination, mode] in &self.mounts {
            bundle = bundle.bind(&self.source(node, source), destination, &[mode]);
        }
        bundle
    }
}

/// Policy for bundles that are not where containerd would put them.
const ENGINE: &str = "engine = \"containerd\"";

fn limits(host: &Host, bundle: &Bundle) -> Vec<GpuLimits> {
    bundle.write();
    let policy = Policy::load(Some(&host.policy_file())).unwrap();
    let read = bundle::Bundle::load(bundle.path(), None).unwrap().of_engine(policy.engine);
    prepare::limits(&read, &policy).unwrap().map(|limits| limits.gpus).unwrap_or_default()
}

fn check(fixture: &Fixture, container: &Container, machine: &Machine, host: &Host) {
    let case = format!("{}\n{}{}", fixture.about, if container.init { "init container " } else { "container " }, container.name);
    if let Some(expected) = &container.refused {
        let node = node();
        let refusal = host.run(&container.bundle(fixture, machine, node.path()).shell("true")).refusal();
        assert!(refusal.contains(expected.as_str()), "{case}: {refusal}");
        return;
    }
    if container.starts {
        let node = node();
        assert_eq!(host.run(&container.bundle(fixture, machine, node.path()).shell("echo started")).ok(), "started\n", "{case}");
        return;
    }
    for (gpu, expected) in &container.expect {
        let node = node();
        let mut script = format!("{PROGRAMS}/fill --gpu {gpu} --chunk 16M --max 4G");
        if let Some(cache) = &container.cache {
            script = format!("printf x >>{cache}; grep -q theirs /usr/local/vgpu/libvgpu.so /etc/ld.so.preload && exit 1; {script}");
        }
        let bundle = container.bundle(fixture, machine, node.path()).shell(&script);
        let known = limits(host, &bundle);
        let uuid = format!("GPU-516d6770-7500-4000-8000-{gpu:0>12}");
        let of_gpu = known
            .iter()
            .find(|limits| limits.gpu == Which::Uuid(uuid.clone()))
            .or(known.first())
            .unwrap_or_else(|| panic!("{case}: expected limits"));
        assert_eq!(of_gpu.cores, expected.cores, "{case}: {known:?}");
        let fill = Fill::of(&host.run(&bundle).ok());
        assert_eq!((fill.total, fill.error.as_str()), (expected.mib * MIB, "CUDA_ERROR_OUT_OF_MEMORY"), "{case}, GPU {gpu}");
        if let Some(cache) = &container.cache {
            let file = container.monitor_dir(node.path()).join(Path::new(cache).file_name().unwrap());
            assert_eq!(fs::read_to_string(&file).unwrap(), "x", "{case}: the monitor must read what the container writes");
            let count = fs::read_dir(container.monitor_dir(node.path())).unwrap().count();
            assert!(count <= 2, "{case}: the monitor expects at most 2 files, found {count}");
        }
    }
}

#[test]
fn containers_get_their_schedulers_decision() {
    let kit = Kit::find();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert_eq!(paths.len(), 5);
    for (runtime, _, host) in hosts(&kit).filter(|(_, way, _)| *way == Way::Wrapper) {
        let machine = Machine::simulated(&kit, &["gpus=2", "total=4G", "context=8M"]);
        host.policy(ENGINE);
        // Written by vgpu monitor when it starts.
        let gpu = |index: u32| json!({ "index": index, "uuid": format!("GPU-516d6770-7500-4000-8000-{index:0>12}"), "name": "Simulated GPU", "memory": 4_u64 << 30 });
        fs::create_dir_all(host.state_dir()).unwrap();
        fs::write(host.state_dir().join("inventory.json"), json!({ "gpus": [gpu(0), gpu(1)] }).to_string()).unwrap();
        for path in &paths {
            eprintln!("{runtime:?}, {}", path.display());
            let fixture: Fixture = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            for container in &fixture.containers {
                check(&fixture, container, &machine, &host);
            }
        }
    }
}

#[test]
fn tenants_cannot_raise_their_schedulers_decision() {
    let kit = Kit::find();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hami-2.9.json");
    let fixture: Fixture = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let large = fixture.containers.iter().find(|container| container.name == "large").unwrap();
    let Some((_, _, host)) = hosts(&kit).find(|(_, way, _)| *way == Way::Wrapper) else { return };
    let machine = Machine::simulated(&kit, &["gpus=2", "total=4G", "context=8M"]);
    host.policy(ENGINE);
    let node = node();
    let bundle = large.bundle(&fixture, &machine, node.path()).annotation("nvidia.com/gpumem", "4000").annotation("gpu-memory", "4000");
    let mut bundle = bundle.shell(&format!("CUDA_DEVICE_MEMORY_LIMIT_0=4g {PROGRAMS}/fill --chunk 16M --max 4G"));
    bundle.spec["process"]["env"].as_array_mut().unwrap().insert(1, Value::from("CUDA_DEVICE_MEMORY_LIMIT_0=4g"));
    assert_eq!(Fill::of(&host.run(&bundle).ok()).total, 1024 * MIB);
}
