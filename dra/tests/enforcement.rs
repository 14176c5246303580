//! From a claim to a container that is held to it, on the simulated GPU.

use crate::common::api_server::Cluster;
use crate::common::cdi;
use crate::common::gpus::device;
use crate::common::kubelet::{Kubelet, uid};
use crate::common::plugin::{Node, Program, allocate, cdi_ids};
use crate::common::wait_for;
use serde_json::Value;
use vgpu_e2e::{Fill, Kit, MIB, Machine, PROGRAMS, Way, hosts};
use vgpu_test_harness::{Bundle, Host, Outcome};

/// A machine with two simulated GPUs of 24 GiB, on whose kubelet's side the program is registered.
struct Rig {
    kit: Kit,
    node: Node,
    cluster: Cluster,
    machine: Machine,
}

impl Rig {
    fn new(kit: &Kit) -> Self {
        let machine = Machine::simulated(kit, &["gpus=2", "total=24G", "context=8M"]);
        Self { kit: kit.clone(), node: Node::default(), cluster: Cluster::start(), machine }
    }

    /// The program, with NVML of the simulated GPUs.
    fn start(&self, host: &Host) -> Program {
        let state = self.machine.state().expect("simulated GPUs have a state").display().to_string();
        let libraries = self.kit.simgpu().display().to_string();
        let (hook, policy) = (host.hook().display().to_string(), host.policy_file().display().to_string());
        let more = ["--hook", &hook, "--policy", &policy];
        Program::start(&self.node, &self.cluster, &host.state_dir(), &more, &[("LD_LIBRARY_PATH", &libraries), ("SIMGPU_STATE", &state)])
    }

    /// A bundle to which the container runtime has applied these CDI devices.
    fn bundle(&self, ids: &[String]) -> Bundle {
        // The simulated GPU takes the place of what NVIDIA's own CDI device brings.
        cdi::apply(&self.node.path("cdi"), ids, self.machine.bundle())
    }
}

/// What a container obtains of the first GPU that it sees, and what it is told that there is.
fn fill(way: Way, host: &Host, bundle: Bundle) -> Fill {
    Fill::of(&started(way, host, bundle).ok())
}

fn started(way: Way, host: &Host, bundle: Bundle) -> Outcome {
    let bundle = bundle.shell(&format!("{PROGRAMS}/fill --chunk 64M --max 24G"));
    match way {
        Way::Wrapper => host.run(&bundle),
        // By the hooks of the CDI specification alone.
        Way::Hooks => host.run_bare(&bundle),
    }
}

#[test]
fn containers_are_held_to_their_claims() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        let case = format!("{runtime:?}, {way:?}");
        let rig = Rig::new(&kit);
        let plugin = rig.start(&host);
        let kubelet = Kubelet::register(&rig.node.path("registry"));
        wait_for("both GPUs", || (rig.cluster.devices().len() == 2).then_some(()));
        allocate(&rig.cluster, "a", &[("gpu", 0, "10Gi", "30")]);
        allocate(&rig.cluster, "b", &[("gpu", 0, "4Gi", "0")]);
        allocate(&rig.cluster, "two", &[("large", 0, "6Gi", "20"), ("small", 0, "1Gi", "10")]);
        let prepared = |claim: &str, request: Option<&str>| cdi_ids(&kubelet.prepare(claim).unwrap(), request);

        // One claim.
        let watch = rig.machine.watch();
        let held = fill(way, &host, rig.bundle(&prepared("a", None)));
        assert_eq!(
            (held.total, held.error.as_str(), held.obtained),
            (10240 * MIB, "CUDA_ERROR_OUT_OF_MEMORY", 10240 * MIB - 64 * MIB),
            "{case}"
        );
        assert!(watch.peak(0) <= 10240 * MIB, "{case}");

        // Two claims in one container, whose variables are numbered alike: their shares of the GPU add up.
        let both = [prepared("a", None), prepared("b", None)].concat();
        assert_eq!(fill(way, &host, rig.bundle(&both)).total, 14336 * MIB, "{case}");
        assert_eq!(fill(way, &host, rig.bundle(&[prepared("b", None), prepared("a", None)].concat())).total, 14336 * MIB, "{case}");

        // Two containers with different shares of one claim, and one with all of it.
        assert_eq!(fill(way, &host, rig.bundle(&prepared("two", Some("large")))).total, 6144 * MIB, "{case}");
        assert_eq!(fill(way, &host, rig.bundle(&prepared("two", Some("small")))).total, 1024 * MIB, "{case}");
        assert_eq!(fill(way, &host, rig.bundle(&prepared("two", None))).total, 7168 * MIB, "{case}");

        // Whatever the pod or its image says beside the claim gives no more.
        let more = rig.machine.bundle().env("CUDA_DEVICE_MEMORY_LIMIT_0", "20g").env("NVIDIA_VISIBLE_DEVICES", "all");
        let bundle = cdi::apply(&rig.node.path("cdi"), &prepared("a", None), more);
        assert_eq!(fill(way, &host, bundle.env("CUDA_DEVICE_MEMORY_LIMIT", "20g")).total, 10240 * MIB, "{case}");

        // A running container keeps its share while the plugin is not there, and after its claim is gone.
        drop(plugin);
        let bundle = rig.bundle(&cdi_ids_of("a"));
        assert_eq!(fill(way, &host, bundle).total, 10240 * MIB, "{case}");
        let _plugin = rig.start(&host);
        let kubelet = Kubelet::register(&rig.node.path("registry"));
        for claim in ["a", "b", "two"] {
            kubelet.unprepare(claim).unwrap();
        }
        let claims = std::fs::read_dir(host.state_dir().join("claims")).unwrap().count();
        assert_eq!(claims, 0, "{case}");
    }
}

/// The CDI devices of a claim of one share, as the container runtime still has them from the kubelet.
fn cdi_ids_of(claim: &str) -> Vec<String> {
    vec![format!("vgpu.io/claim={}-0", uid(claim)), "vgpu.io/hooks=enforce".to_owned()]
}

#[test]
fn a_share_of_several_containers_is_refused_where_policy_says_so() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        let case = format!("{runtime:?}, {way:?}");
        let rig = Rig::new(&kit);
        let _plugin = rig.start(&host);
        let kubelet = Kubelet::register(&rig.node.path("registry"));
        wait_for("both GPUs", || (rig.cluster.devices().len() == 2).then_some(()));
        allocate(&rig.cluster, "two", &[("large", 0, "6Gi", "20"), ("small", 0, "1Gi", "10")]);
        let share = |request: Option<&str>| rig.bundle(&cdi_ids(&kubelet.prepare("two").unwrap(), request));
        let mut running = Way::Wrapper.start(&host, share(Some("large")).shell("echo here; sleep 1000"));
        assert_eq!(running.line(), "here", "{case}");
        assert_eq!(fill(way, &host, share(Some("large"))).total, 6144 * MIB, "{case}: each is limited by itself");
        host.policy("shared_claims = \"refuse\"");
        for request in [Some("large"), None] {
            let refused = started(way, &host, share(request));
            let said = refused.log + &refused.stderr;
            let told = [running.id.as_str(), "team/two", "shared_claims"].iter().all(|part| said.contains(part));
            assert!(!refused.status.success() && told, "{case}: {said}");
        }
        assert_eq!(fill(way, &host, share(Some("small"))).total, 1024 * MIB, "{case}: another share of the claim");
        drop(running);
        assert_eq!(fill(way, &host, share(Some("large"))).total, 6144 * MIB, "{case}: nobody else has it any more");
    }
}

#[test]
fn the_time_is_the_claims_too() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit).filter(|(_, way, _)| *way == Way::Wrapper) {
        let rig = Rig::new(&kit);
        let _plugin = rig.start(&host);
        let kubelet = Kubelet::register(&rig.node.path("registry"));
        allocate(&rig.cluster, "a", &[("gpu", 0, "10Gi", "30")]);
        allocate(&rig.cluster, "b", &[("gpu", 0, "1Gi", "15")]);
        let mut ids = cdi_ids(&kubelet.prepare("a").unwrap(), None);
        for cores in [30, 45] {
            let bundle = rig.bundle(&ids).shell(&format!("cat /usr/local/vgpu/limits >/dev/null; {PROGRAMS}/spin --ns 200000 --seconds 2"));
            let mut running = way.start(&host, bundle);
            let record = host.state_dir().join("containers").join(&running.id).join("container.json");
            let record: Value = wait_for("the container's record", || serde_json::from_slice(&std::fs::read(&record).ok()?).ok());
            let limits = &record["limits"]["gpus"][0];
            assert_eq!(
                (&limits["cores"], &limits["gpu"]["uuid"]),
                (&Value::from(cores), &Value::from(crate::common::gpus::uuid(0))),
                "{runtime:?}: {record}"
            );
            let said = running.line();
            assert!(running.finish(), "{said}");
            eprintln!("{runtime:?}, {cores}%: {said}");
            let share: f64 = said.split_whitespace().last().unwrap().parse().unwrap();
            // The simulated GPU runs kernels for as long as they say; it is kept from more than the share, however busy this machine is.
            assert!(share > 0.0 && share <= f64::from(cores) / 100.0 * 1.15, "{runtime:?}, {cores}: {said}");
            ids.extend(cdi_ids(&kubelet.prepare("b").unwrap(), None));
        }
        assert_eq!(rig.cluster.devices().len(), 2, "{}", device(0));
    }
}

#[test]
fn a_simulated_gpu_that_falls_off() {
    let kit = Kit::find();
    let Some((_, _, host)) = hosts(&kit).next() else { return };
    let rig = Rig::new(&kit);
    let _plugin = rig.start(&host);
    let kubelet = Kubelet::register(&rig.node.path("registry"));
    wait_for("both GPUs", || (rig.cluster.devices().len() == 2).then_some(()));
    allocate(&rig.cluster, "a", &[("gpu", 1, "10Gi", "30")]);
    kubelet.prepare("a").unwrap();
    let state = rig.machine.state().unwrap();
    // In one step: whoever looks in between would make a machine of its own.
    let other = state.with_extension("other");
    let _ = kit.simgpu_ctl(&other, &["create", "gpus=1", "total=24G"]);
    std::fs::rename(&other, &state).unwrap();
    wait_for("the taint", || (rig.cluster.devices()[&device(1)]["taints"][0]["effect"] == "NoExecute").then_some(()));
    assert!(kubelet.prepare("a").unwrap_err().contains("does not work"));
}
