//! Enforcement of claims in containers, on the simulated GPU.

use crate::common::api_server::Cluster;
use crate::common::cdi;
use crate::common::gpus::device;
use crate::common::kubelet::{Kubelet, uid};
use crate::common::plugin::{Node, Program, allocate, cdi_ids};
use crate::common::wait_for;
use serde_json::Value;
use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, hosts};
use vgpu_test_harness::{Bundle, Host, Outcome};

/// Node with two simulated GPUs of 24 GiB, and its cluster.
struct TestBed {
    kit: Kit,
    node: Node,
    cluster: Cluster,
    machine: Machine,
}

impl TestBed {
    fn new(kit: &Kit) -> Self {
        let machine = Machine::simulated(kit, &["gpus=2", "total=24G", "context=8M"]);
        Self { kit: kit.clone(), node: Node::default(), cluster: Cluster::start(), machine }
    }

    /// Starts the plugin, with the NVML of the simulated GPUs.
    fn start(&self, host: &Host) -> Program {
        let state = self.machine.state().expect("simulated GPUs have a state").display().to_string();
        let libraries = self.kit.simgpu().display().to_string();
        let (hook, policy) = (host.hook().display().to_string(), host.policy_file().display().to_string());
        let more = ["--hook", &hook, "--policy", &policy];
        Program::start(&self.node, &self.cluster, &host.state_dir(), &more, &[("LD_LIBRARY_PATH", &libraries), ("SIMGPU_STATE", &state)])
    }

    /// Returns a bundle with these CDI devices applied.
    fn bundle(&self, ids: &[String]) -> Bundle {
        // The simulated GPU replaces NVIDIA's CDI device.
        cdi::apply(&self.node.path("cdi"), ids, self.machine.bundle())
    }
}

/// Fills the memory of a container's first GPU. Returns what it obtained, and the total that it saw.
fn fill(way: Way, host: &Host, bundle: Bundle) -> Fill {
    Fill::of(&run_fill(way, host, bundle).ok())
}

fn run_fill(way: Way, host: &Host, bundle: Bundle) -> Outcome {
    let bundle = bundle.shell(&format!("{PROGRAMS}/fill --chunk 64M --max 24G"));
    match way {
        Way::Wrapper => host.run(&bundle),
        // Limited only by the hook of the CDI specification.
        Way::Hooks => host.run_bare(&bundle),
    }
}

#[test]
fn containers_are_limited_to_their_claims() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        let case = format!("{runtime:?}, {way:?}");
        let bed = TestBed::new(&kit);
        let plugin = bed.start(&host);
        let kubelet = Kubelet::register(&bed.node.path("registry"));
        wait_for("both GPUs", || (bed.cluster.devices().len() == 2).then_some(()));
        allocate(&bed.cluster, "a", &[("gpu", 0, "10Gi", "30")]);
        allocate(&bed.cluster, "b", &[("gpu", 0, "4Gi", "0")]);
        allocate(&bed.cluster, "two", &[("large", 0, "6Gi", "20"), ("small", 0, "1Gi", "10")]);
        let prepared = |claim: &str, request: Option<&str>| cdi_ids(&kubelet.prepare(claim).unwrap(), request);

        // One claim.
        let watch = bed.machine.watch();
        let held = fill(way, &host, bed.bundle(&prepared("a", None)));
        assert_eq!(
            (held.total, held.error.as_str(), held.obtained),
            (10240 * MIB, "CUDA_ERROR_OUT_OF_MEMORY", 10240 * MIB - 64 * MIB),
            "{case}"
        );
        assert!(watch.peak(0) <= 10240 * MIB, "{case}");

        // Two claims in one container, whose variables have the same numbers: their shares of the GPU add up.
        let both = [prepared("a", None), prepared("b", None)].concat();
        assert_eq!(fill(way, &host, bed.bundle(&both)).total, 14336 * MIB, "{case}");
        assert_eq!(fill(way, &host, bed.bundle(&[prepared("b", None), prepared("a", None)].concat())).total, 14336 * MIB, "{case}");

        // Two containers with different shares of one claim, and one with all of it.
        assert_eq!(fill(way, &host, bed.bundle(&prepared("two", Some("large")))).total, 6144 * MIB, "{case}");
        assert_eq!(fill(way, &host, bed.bundle(&prepared("two", Some("small")))).total, 1024 * MIB, "{case}");
        assert_eq!(fill(way, &host, bed.bundle(&prepared("two", None))).total, 7168 * MIB, "{case}");

        // The environment of the pod or its image does not raise the limit.
        let more = bed.machine.bundle().env("CUDA_DEVICE_MEMORY_LIMIT_0", "20g").env("NVIDIA_VISIBLE_DEVICES", "all");
        let bundle = cdi::apply(&bed.node.path("cdi"), &prepared("a", None), more);
        assert_eq!(fill(way, &host, bundle.env("CUDA_DEVICE_MEMORY_LIMIT", "20g")).total, 10240 * MIB, "{case}");

        // A container keeps its share while the plugin is down, and after its claim is deleted.
        drop(plugin);
        let bundle = bed.bundle(&known_cdi_ids("a"));
        assert_eq!(fill(way, &host, bundle).total, 10240 * MIB, "{case}");
        let _plugin = bed.start(&host);
        let kubelet = Kubelet::register(&bed.node.path("registry"));
        for claim in ["a", "b", "two"] {
            kubelet.unprepare(claim).unwrap();
        }
        let claims = std::fs::read_dir(host.state_dir().join("claims")).unwrap().count();
        assert_eq!(claims, 0, "{case}");
    }
}

/// Returns the CDI devices of a claim of one share, as the kubelet passed them to the container runtime earlier.
fn known_cdi_ids(claim: &str) -> Vec<String> {
    vec![format!("vgpu.io/claim={}-0", uid(claim)), "vgpu.io/hooks=enforce".to_owned()]
}

#[test]
fn share_is_for_one_container_unless_the_policy_says_otherwise() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        let case = format!("{runtime:?}, {way:?}");
        let bed = TestBed::new(&kit);
        let _plugin = bed.start(&host);
        let kubelet = Kubelet::register(&bed.node.path("registry"));
        wait_for("both GPUs", || (bed.cluster.devices().len() == 2).then_some(()));
        allocate(&bed.cluster, "two", &[("large", 0, "6Gi", "20"), ("small", 0, "1Gi", "10")]);
        let share = |request: Option<&str>| bed.bundle(&cdi_ids(&kubelet.prepare("two").unwrap(), request));
        let mut running = Way::Wrapper.start(&host, share(Some("large")).shell("echo here; sleep 1000"));
        assert_eq!(running.line(), "here", "{case}");
        host.policy("shared_claims = \"start\"");
        assert_eq!(fill(way, &host, share(Some("large"))).total, 6144 * MIB, "{case}: each container has its own limit");
        host.policy("");
        for request in [Some("large"), None] {
            let refused = run_fill(way, &host, share(request));
            let output = refused.log + &refused.stderr;
            let is_explained = [running.id.as_str(), "team/two", "shared_claims"].iter().all(|part| output.contains(part));
            assert!(!refused.status.success() && is_explained, "{case}: {output}");
        }
        assert_eq!(fill(way, &host, share(Some("small"))).total, 1024 * MIB, "{case}: another share of the claim");
        drop(running);
        assert_eq!(fill(way, &host, share(Some("large"))).total, 6144 * MIB, "{case}: the share is free again");
    }
}

#[test]
fn compute_time_is_limited_to_the_claim() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit).filter(|(_, way, _)| *way == Way::Wrapper) {
        let bed = TestBed::new(&kit);
        let _plugin = bed.start(&host);
        let kubelet = Kubelet::register(&bed.node.path("registry"));
        allocate(&bed.cluster, "a", &[("gpu", 0, "10Gi", "30")]);
        allocate(&bed.cluster, "b", &[("gpu", 0, "1Gi", "15")]);
        let mut ids = cdi_ids(&kubelet.prepare("a").unwrap(), None);
        for cores in [30, 45] {
            let bundle = bed.bundle(&ids).shell(&format!("cat /usr/local/vgpu/limits >/dev/null; {PROGRAMS}/spin --ns 200000 --seconds 2"));
            let mut running = way.start(&host, bundle);
            let record = host.state_dir().join("containers").join(&running.id).join("container.json");
            let record: Value = wait_for("the container's record", || serde_json::from_slice(&std::fs::read(&record).ok()?).ok());
            let limits = &record["limits"]["gpus"][0];
            assert_eq!(
                (&limits["cores"], &limits["gpu"]["uuid"]),
                (&Value::from(cores), &Value::from(crate::common::gpus::uuid(0))),
                "{runtime:?}: {record}"
            );
            let output = running.line();
            assert!(running.finish(), "{output}");
            eprintln!("{runtime:?}, {cores}%: {output}");
            let share: f64 = output.split_whitespace().last().unwrap().parse().unwrap();
            // Kernels of the simulated GPU take the time that they ask for, so the upper bound holds however busy this machine is.
            assert!(share > 0.0 && share <= f64::from(cores) / 100.0 * 1.15, "{runtime:?}, {cores}: {output}");
            ids.extend(cdi_ids(&kubelet.prepare("b").unwrap(), None));
        }
        assert_eq!(bed.cluster.devices().len(), 2, "{}", device(0));
    }
}

#[test]
fn simulated_gpu_that_disappears_is_tainted() {
    let kit = Kit::find();
    let Some((_, _, host)) = hosts(&kit).next() else { return };
    let bed = TestBed::new(&kit);
    let _plugin = bed.start(&host);
    let kubelet = Kubelet::register(&bed.node.path("registry"));
    wait_for("both GPUs", || (bed.cluster.devices().len() == 2).then_some(()));
    allocate(&bed.cluster, "a", &[("gpu", 1, "10Gi", "30")]);
    kubelet.prepare("a").unwrap();
    let state = bed.machine.state().unwrap();
    // Atomically: a process that finds no machine in between would create its own.
    let other = state.with_extension("other");
    let _ = kit.simgpu_ctl(&other, &["create", "gpus=1", "total=24G"]);
    std::fs::rename(&other, &state).unwrap();
    wait_for("the taint", || (bed.cluster.devices()[&device(1)]["taints"][0]["effect"] == "NoSchedule").then_some(()));
    assert!(kubelet.prepare("a").unwrap_err().contains("not responding"));
}
