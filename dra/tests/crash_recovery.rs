//! Crashes of the plugin at every step, and recovery after its restart.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::common::api_server::Cluster;
use crate::common::gpus::{Gpus, device};
use crate::common::kubelet::{Kubelet, claim, uid};
use crate::common::plugin::{Node, Program, Threaded, allocate};
use crate::common::wait_for;
use vgpu_dra::checkpoint::Checkpoint;
use vgpu_dra::devices;
use vgpu_dra::discovery::GpuSource;
use vgpu_dra::driver::Driver;
use vgpu_dra::slices::SlicePublisher;
use vgpu_dra::storage::{LocalStorage, Storage, temporary_path};

/// Storage that fails after a number of steps. A write has three: it fails before the write, with a half-written temporary file, or after
/// the write.
struct FailingStorage(AtomicUsize);

const STEPS: usize = 3;

impl FailingStorage {
    fn after(steps: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(steps)))
    }

    /// Returns the number of steps of the next change that succeed; `None` for all.
    fn next(&self) -> Option<usize> {
        let left = self.0.load(Relaxed);
        self.0.store(left.saturating_sub(STEPS), Relaxed);
        (left < STEPS).then_some(left)
    }
}

fn power_failure<T>() -> io::Result<T> {
    Err(io::Error::other("power failure"))
}

impl Storage for FailingStorage {
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        match self.next() {
            None => LocalStorage.write(path, contents),
            Some(0) => power_failure(),
            Some(1) => {
                std::fs::create_dir_all(path.parent().unwrap())?;
                std::fs::write(temporary_path(path), &contents[..contents.len() / 2])?;
                power_failure()
            }
            Some(_) => LocalStorage.write(path, contents).and_then(|()| power_failure()),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match self.next() {
            None => LocalStorage.remove(path),
            Some(0 | 1) => power_failure(),
            Some(_) => LocalStorage.remove(path).and_then(|()| power_failure()),
        }
    }
}

async fn driver(node: &Node, cluster: &Cluster, storage: Arc<dyn Storage>) -> Driver {
    let options = node.options(&[]);
    let driver =
        Driver::new(options.node.clone(), cluster.client(), options.cdi_config(), Checkpoint(options.checkpoint_path()), storage).unwrap();
    let all = devices::of_machine(&Gpus::with([0, 1]).discover().unwrap());
    driver.set_present(all.into_iter().map(|(name, (known, _))| (name, known)).collect()).await;
    driver
}

/// Returns the files of claims, without the temporary ones that a crash left.
fn files(node: &Node) -> Vec<String> {
    node.files().into_iter().filter(|name| !name.starts_with('.')).collect()
}

fn cluster() -> Cluster {
    let cluster = Cluster::start();
    allocate(&cluster, "a", &[("gpu", 0, "10Gi", "30"), ("gpu", 1, "4Gi", "0")]);
    cluster
}

#[tokio::test]
async fn prepare_is_completed_or_undone_after_a_crash_at_any_step() {
    let cluster = cluster();
    let reference = Node::default();
    let whole = driver(&reference, &cluster, Arc::new(LocalStorage)).await;
    let expected = whole.prepare(&claim("a")).await.unwrap();
    let expected_files = files(&reference);
    assert_eq!(expected_files.len(), 3);
    let mut failures = 0;
    for steps in 0.. {
        let again = Node::default();
        let given_up = Node::default();
        for node in [&again, &given_up] {
            let first = driver(node, &cluster, FailingStorage::after(steps)).await.prepare(&claim("a")).await;
            if first.is_ok() {
                assert_eq!(failures, steps * 2);
                assert!(failures >= 2 * STEPS * 4, "expected writes of the checkpoint, two shares and the specification");
                return;
            }
            failures += 1;
        }
        // The kubelet repeats the request.
        let restarted = driver(&again, &cluster, Arc::new(LocalStorage)).await;
        restarted.restore().await.unwrap();
        assert_eq!(restarted.prepare(&claim("a")).await.unwrap(), expected, "after {steps} steps");
        assert_eq!(files(&again), [&expected_files[..], &["vgpu.io-hooks.json".to_owned()]].concat());
        // Or the pod was deleted meanwhile.
        let restarted = driver(&given_up, &cluster, Arc::new(LocalStorage)).await;
        restarted.restore().await.unwrap();
        restarted.unprepare(&uid("a")).await.unwrap();
        assert_eq!(files(&given_up), ["vgpu.io-hooks.json"], "after {steps} steps");
    }
}

#[tokio::test]
async fn unprepare_is_completed_after_a_crash_at_any_step() {
    let cluster = cluster();
    for steps in 0.. {
        let node = Node::default();
        driver(&node, &cluster, Arc::new(LocalStorage)).await.prepare(&claim("a")).await.unwrap();
        let done = driver(&node, &cluster, FailingStorage::after(steps)).await.unprepare(&uid("a")).await;
        if done.is_ok() {
            assert_eq!(steps, STEPS * 4);
            return;
        }
        let restarted = driver(&node, &cluster, Arc::new(LocalStorage)).await;
        restarted.restore().await.unwrap();
        let count = files(&node).len();
        assert!(count == 4 || count == 1, "expected all files of the claim or none: {:?}", files(&node));
        restarted.unprepare(&uid("a")).await.unwrap();
        assert_eq!(files(&node), ["vgpu.io-hooks.json"], "after {steps} steps");
        assert!(driver(&node, &cluster, Arc::new(LocalStorage)).await.devices_in_use().await.is_empty());
    }
}

#[tokio::test]
async fn slices_have_one_generation_after_a_failure_at_any_write() {
    let devices = |count: usize| {
        let all = devices::of_machine(&Gpus::with(0..count).discover().unwrap());
        all.into_values().map(|(_, device)| device).collect::<Vec<_>>()
    };
    for (before, after) in [(0, 130), (130, 3), (130, 200), (3, 0)] {
        for writes in 0.. {
            let cluster = Cluster::start();
            let publisher = || SlicePublisher::new(cluster.client(), crate::common::api_server::NODE.to_owned());
            publisher().reconcile(&devices(before), true).await.unwrap();
            cluster.fail_after(Some(writes));
            let done = publisher().reconcile(&devices(after), true).await.is_ok();
            cluster.fail_after(None);
            publisher().reconcile(&devices(after), true).await.unwrap();
            let slices = cluster.slices();
            assert_eq!(slices.len(), after.div_ceil(64), "{before} to {after}, {writes} writes");
            let pools: Vec<_> = slices.iter().map(|slice| slice["spec"]["pool"].clone()).collect();
            assert!(pools.iter().all(|pool| *pool == pools[0] && pool["resourceSliceCount"] == slices.len()), "{pools:?}");
            assert_eq!(cluster.devices().len(), after);
            assert_eq!(cluster.refused(), [] as [String; 0]);
            if done {
                break;
            }
        }
    }
}

#[test]
fn claims_survive_a_kill_during_prepare_and_a_reboot() {
    let (node, cluster) = (Node::default(), cluster());
    let inventory = node.path("gpus.json");
    std::fs::write(&inventory, serde_json::to_vec(&Gpus::with([0, 1]).discover().unwrap()).unwrap()).unwrap();
    let more = ["--inventory", inventory.to_str().unwrap()];
    let start = || Program::start(&node, &cluster, &node.path("state"), &more, &[]);
    cluster.answer_claims(false);
    let mut first = start();
    std::thread::scope(|scope| {
        let request = scope.spawn(|| Kubelet::register(&node.path("registry")).prepare("a"));
        wait_for("the request for the claim", || cluster.log().iter().any(|line| line.contains("/resourceclaims/a")).then_some(()));
        first.kill();
        assert!(request.join().unwrap().is_err());
    });
    cluster.answer_claims(true);
    let second = start();
    let kubelet = Kubelet::register(&node.path("registry"));
    let prepared = kubelet.prepare("a").unwrap();
    assert_eq!(files(&node).len(), 4);
    drop(second);
    // As after a reboot: /run is empty, and the API server does not answer.
    std::fs::remove_dir_all(node.path("cdi")).unwrap();
    std::fs::remove_dir_all(node.path("state")).unwrap();
    cluster.answer_claims(false);
    let _third = start();
    let kubelet = Kubelet::register(&node.path("registry"));
    assert_eq!(files(&node).len(), 4, "prepared claims must be restored");
    assert_eq!(kubelet.prepare("a").unwrap(), prepared);
    kubelet.unprepare("a").unwrap();
    assert_eq!(files(&node), ["vgpu.io-hooks.json"]);
    cluster.answer_claims(true);
}

#[test]
fn claims_deleted_from_the_cluster_are_unprepared() {
    let (node, cluster) = (Node::default(), cluster());
    {
        let _plugin = Threaded::start(&node, &cluster, Gpus::with([0, 1]));
        Kubelet::register(&node.path("registry")).prepare("a").unwrap();
    }
    allocate(&cluster, "b", &[("gpu", 0, "1Gi", "0")]);
    cluster.remove(&crate::common::api_server::claim_path("a"));
    let _plugin = Threaded::start(&node, &cluster, Gpus::with([0, 1]));
    let kubelet = Kubelet::register(&node.path("registry"));
    wait_for("the claim's files to be removed", || (files(&node) == ["vgpu.io-hooks.json"]).then_some(()));
    kubelet.prepare("b").unwrap();
    assert!(node.files().iter().any(|name| name.contains(&uid("b"))));
    assert_eq!(device(0), devices::device_name(&crate::common::gpus::uuid(0)));
}

#[tokio::test]
async fn vanished_mig_device_does_not_stop_the_plugin() {
    let (node, cluster) = (Node::default(), cluster());
    let minors = node.path("mig-minors");
    std::fs::write(&minors, "gpu0/gi1/access 10\ngpu0/gi1/ci0/access 11\n").unwrap();
    let options = node.options(&["--devices", "nodes", "--mig-minors", minors.to_str().unwrap()]);
    let start = || {
        Driver::new(
            options.node.clone(),
            cluster.client(),
            options.cdi_config(),
            Checkpoint(options.checkpoint_path()),
            Arc::new(LocalStorage),
        )
    };
    let checkpoint = Checkpoint(options.checkpoint_path());
    let claims = serde_json::json!({
        "mig": { "namespace": "team", "name": "mig", "grants": [{ "request": "r", "pool": "node-a", "device": "mig-1", "uuid": "MIG-1", "memory": 1, "minor": 0, "instance": [1, 0] }] },
        "whole": { "namespace": "team", "name": "whole", "grants": [{ "request": "r", "pool": "node-a", "device": "gpu-1", "uuid": "GPU-1", "memory": 1, "minor": 0 }] },
    });
    checkpoint.save(&LocalStorage, &serde_json::from_value(claims).unwrap()).unwrap();
    start().unwrap().restore().await.unwrap();
    assert!(files(&node).contains(&"vgpu.io-claim_mig.json".to_owned()));
    // After a reboot, the partition does not exist any more.
    std::fs::remove_dir_all(node.path("cdi")).unwrap();
    std::fs::write(&minors, "").unwrap();
    let restarted = start().unwrap();
    restarted.restore().await.unwrap();
    assert!(files(&node).contains(&"vgpu.io-claim_whole.json".to_owned()), "other claims are restored");
    restarted.unprepare("mig").await.unwrap();
}
