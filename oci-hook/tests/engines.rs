//! Annotations are believed only of the engine that made the bundle, which the bundle's path tells.

mod common;

use common::{Way, host, own_id, runtimes};
use vgpu_test_harness::{Bundle, Host};

/// Annotations that mark a container as a pod's sandbox, of each engine.
const SANDBOX: [(&str, &str); 2] = [("io.kubernetes.cri.container-type", "sandbox"), ("io.kubernetes.cri-o.ContainerType", "sandbox")];
/// Annotations that name the pod's sandbox, of each engine.
const SANDBOX_ID: [&str; 2] = ["io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID"];
/// Annotations that name the pod's namespace, of each engine.
const NAMESPACE: [(&str, &str); 2] =
    [("io.kubernetes.cri.sandbox-namespace", "kube-system"), ("io.kubernetes.pod.namespace", "kube-system")];
/// What each engine says about a container of the namespace `team`, in the sandbox `0a1b`. It sets that after the pod's annotations.
const CONTAINERD: [(&str, &str); 3] = [
    ("io.kubernetes.cri.container-type", "container"),
    ("io.kubernetes.cri.sandbox-id", "0a1b"),
    ("io.kubernetes.cri.sandbox-namespace", "team"),
];
const CRIO: [(&str, &str); 3] = [
    ("io.kubernetes.cri-o.ContainerType", "container"),
    ("io.kubernetes.cri-o.SandboxID", "0a1b"),
    ("io.kubernetes.pod.namespace", "team"),
];

/// Paths of bundles of containerd's CRI plugin, CRI-O, Docker, Podman and an unknown engine, with what the engine sets itself.
const ENGINES: [(&str, &[(&str, &str)]); 5] = [
    ("containerd/io.containerd.runtime.v2.task/k8s.io/0a1b", &CONTAINERD),
    ("containers/storage/overlay-containers/0a1b/userdata", &CRIO),
    ("docker/containerd/daemon/io.containerd.runtime.v2.task/moby/0a1b", &[]),
    ("storage/graph/0a1b/userdata", &[]),
    ("bundle", &[]),
];

/// Prints whether the container is limited.
const SCRIPT: &str = "test -e /etc/ld.so.preload && echo limited || echo unlimited";

/// Runs a test with every installed runtime, through `vgpu-runtime` and by a hook, each time on a new host.
fn both_ways(test: impl Fn(&Host, Way)) {
    for runtime in runtimes() {
        for way in [Way::Wrapper, Way::Hooks] {
            test(&host(runtime), way);
        }
    }
}

/// Returns the outcome of a container whose user has set `forged`, made by each engine.
fn of_each_engine(host: &Host, way: Way, forged: &[(&str, &str)], build: impl Fn(Bundle) -> Bundle) -> Vec<String> {
    let run = |&(path, own): &(&str, &[(&str, &str)])| {
        let folder = tempfile::tempdir_in("/run").unwrap();
        let all = forged.iter().chain(own);
        let bundle = all.fold(build(Bundle::new()), |bundle, (key, value)| bundle.annotation(key, value));
        way.run(host, bundle.shell(SCRIPT).placed_in(&folder.path().join(path))).ok()
    };
    ENGINES.iter().map(run).collect()
}

#[test]
fn a_forged_sandbox_is_limited() {
    both_ways(|host, way| {
        host.policy("without_request = \"refuse\"");
        let limited = |bundle: Bundle| bundle.env("CUDA_DEVICE_MEMORY_LIMIT", "1g");
        assert_eq!(of_each_engine(host, way, &SANDBOX, limited), ["limited\n"; 5], "{way:?}");
    });
}

/// CRI-O copies the annotations that its client gives a container over its own.
#[test]
fn a_container_that_is_marked_after_the_engine_is_limited() {
    both_ways(|host, way| {
        for (path, own, mark) in [(ENGINES[0].0, ENGINES[0].1, SANDBOX[0]), (ENGINES[1].0, ENGINES[1].1, SANDBOX[1])] {
            let folder = tempfile::tempdir_in("/run").unwrap();
            let bundle = Bundle::new().annotation("nvidia.com/gpumem", "1024");
            let bundle = own.iter().chain([&mark]).fold(bundle, |bundle, (key, value)| bundle.annotation(key, value));
            assert_eq!(way.run(host, bundle.shell(SCRIPT).placed_in(&folder.path().join(path))).ok(), "limited\n", "{mark:?}, {way:?}");
        }
    });
}

#[test]
fn a_forged_namespace_does_not_opt_out() {
    both_ways(|host, way| {
        host.policy("[opt_out]\nnamespaces = [\"kube-system\"]\n[defaults]\nmemory = \"1g\"");
        let opting_out = |bundle: Bundle| bundle.env("CUDA_DISABLE_CONTROL", "true").annotation("nvidia.com/gpumem", "1024");
        assert_eq!(of_each_engine(host, way, &NAMESPACE, opting_out), ["limited\n"; 5], "{way:?}");
        // The engine's own word counts.
        host.policy("[opt_out]\nnamespaces = [\"team\"]");
        assert_eq!(of_each_engine(host, way, &NAMESPACE, opting_out)[..2], ["unlimited\n"; 2], "{way:?}");
    });
}

#[test]
fn true_sandboxes_are_passed_on_unless_they_have_a_gpu() {
    both_ways(|host, way| {
        for ((path, mark), key) in [ENGINES[0].0, ENGINES[1].0].into_iter().zip(SANDBOX).zip(SANDBOX_ID) {
            let sandbox = |bundle: Bundle| {
                let folder = tempfile::tempdir_in("/run").unwrap();
                let bundle = own_id(bundle.annotation(mark.0, mark.1), key).annotation("nvidia.com/gpumem", "1024").shell(SCRIPT);
                way.run(host, bundle.placed_in(&folder.path().join(path))).ok()
            };
            assert_eq!(sandbox(Bundle::new()), "unlimited\n", "{mark:?}, {way:?}");
            assert_eq!(sandbox(Bundle::new().device("/dev/nvidia0")), "limited\n", "{mark:?}, {way:?}");
            assert_eq!(sandbox(Bundle::new().env("NVIDIA_VISIBLE_DEVICES", "all")), "limited\n", "{mark:?}, {way:?}");
        }
    });
}

#[test]
fn the_policy_names_the_engine_of_other_paths() {
    both_ways(|host, way| {
        let sandbox = |mark: (&str, &str)| {
            let bundle = SANDBOX_ID.iter().fold(Bundle::new(), |bundle, key| own_id(bundle, key));
            let bundle = bundle.annotation(mark.0, mark.1).annotation("nvidia.com/gpumem", "1024");
            way.run(host, bundle.shell(SCRIPT)).ok()
        };
        for (engine, expected) in [
            ("auto", ["limited\n", "limited\n"]),
            ("containerd", ["unlimited\n", "limited\n"]),
            ("crio", ["limited\n", "unlimited\n"]),
            ("none", ["limited\n", "limited\n"]),
        ] {
            host.policy(&format!("engine = {engine:?}"));
            assert_eq!(SANDBOX.map(sandbox), expected, "{engine}, {way:?}");
        }
    });
}
