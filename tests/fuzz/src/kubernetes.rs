//! What the Kubernetes API hands to the webhook and to the DRA driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use vgpu_config::Policy;
use vgpu_config::decide::Container;
use vgpu_config::dialect::{self, Sources, claims::ClaimFile};
use vgpu_dra::cdi::{Config, DeviceInjection};
use vgpu_dra::claim::{Grant, grants};
use vgpu_dra::devices::{self, LocalDevice};
use vgpu_dra::quantity;
use vgpu_dra::webhook::{pod, template};

/// Rewrites a pod, and reads the text as a quantity. Asserts that a rewritten pod has nothing left to rewrite.
pub fn webhook(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(bytes) = quantity::parse_exact(text) {
        assert!(quantity::parse(text).is_some_and(|rounded| rounded >= bytes), "{text}: {bytes}");
    }
    let Ok(pod) = serde_json::from_str::<Value>(text) else { return };
    let _ = pod::needs_gpu_sizes(&pod);
    let sizes = BTreeSet::from([1_u64 << 34, 80 << 30]);
    if let Ok(Some(mutated)) = pod::mutate(&pod, &sizes, Some("vgpu")) {
        let mut rewritten = pod.clone();
        rewritten["spec"] = mutated.spec;
        assert_eq!(pod::mutate(&rewritten, &sizes, Some("vgpu")), Ok(None), "a second run changes something");
        for created in mutated.templates {
            let created = serde_json::from_value(created).expect("a ResourceClaimTemplate");
            assert!(template::is_as_created(&created, &created), "{created:?}");
        }
    }
}

/// Node whose pool the devices are in.
const NODE: &str = "node";

/// Two GPUs, of which one is divided into MIG devices.
static DEVICES: LazyLock<BTreeMap<String, LocalDevice>> = LazyLock::new(|| {
    let gpu = |number: u8, partitions: Value| {
        let uuid = format!("GPU-00000000-0000-0000-0000-00000000000{number}");
        json!({
            "index": number, "uuid": uuid, "name": "A", "memory": 24_u64 << 30, "minor": number,
            "partitioned": number == 2, "partitions": partitions,
        })
    };
    let uuid = "MIG-00000000-0000-0000-0000-000000000003";
    let mig = json!({ "index": 0, "uuid": uuid, "memory": 1_u64 << 30, "profile": "1g.1gb", "instance": [1, 0] });
    let machine = json!({ "gpus": [gpu(1, json!([])), gpu(2, json!([mig]))] });
    let machine = serde_json::from_value(machine).expect("a machine");
    devices::of_machine(&machine).into_iter().map(|(name, (local, _))| (name, local)).collect()
});

/// Reads an allocated claim and prepares it. Asserts that no share is larger than its device, and that its containers get these limits.
pub fn claim(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    // The type's own parser decides what is a claim; texts that are only its results or its devices get the rest around them.
    let devices = |devices: Value| json!({ "metadata": {}, "spec": {}, "status": { "allocation": { "devices": devices } } });
    let value = match &value {
        Value::Array(_) => devices(json!({ "results": value })),
        Value::Object(fields) if fields.contains_key("results") => devices(value),
        _ => value,
    };
    let Ok(claim) = serde_json::from_value::<ResourceClaim>(value) else { return };
    let Ok(grants) = grants(&claim, NODE, |name| DEVICES.get(name)) else { return };
    for grant in &grants {
        let device = DEVICES.get(&grant.device).expect("a share of a device that exists");
        assert!((1..=device.memory_bytes()).contains(&grant.memory), "{grant:?}");
        assert!(grant.cores.is_none_or(|cores| (1..100).contains(&cores)), "{grant:?}");
        assert!(grant.cores_soft.is_none_or(|soft| soft <= 100 && grant.cores.is_some_and(|cores| cores <= soft)), "{grant:?}");
        let text = serde_json::to_vec(grant).expect("a grant for the checkpoint");
        assert_eq!(serde_json::from_slice::<Grant>(&text).ok().as_ref(), Some(grant), "the checkpoint has another grant");
    }
    prepare(&grants);
}

/// Writes the files of a claim, and decides on a container that has all of its shares.
fn prepare(grants: &[Grant]) {
    let config = Config {
        spec_dir: "/var/run/cdi".into(),
        state_dir: "/run/vgpu".into(),
        device_injection: DeviceInjection::Cdi,
        nvidia_kind: "nvidia.com/gpu".to_owned(),
        hook: Some("/usr/bin/vgpu-hook".into()),
        policy: None,
        mounts: Vec::new(),
        mig_minors: "/dev/null".into(),
    };
    let files = config.claim_files("uid", "default/claim", grants).expect("files that need no table of MIG devices");
    let claims: Vec<ClaimFile> = files
        .into_iter()
        .filter(|(path, _)| path.starts_with(&config.state_dir))
        .map(|(path, text)| ClaimFile { path, text: String::from_utf8(text).ok() })
        .collect();
    assert_eq!(claims.len(), grants.iter().filter(|grant| !grant.admin).count());
    assert!(claims.iter().all(|claim| is_below(&claim.path, &config.state_dir.join("claims"))), "{claims:?}");
    let none = BTreeMap::new();
    let sources = Sources { annotations: &none, env: &none, container: None, alnair_limits: None, claims: &claims };
    let request = dialect::read(&sources).expect("shares that the hook understands");
    let limits = vgpu_config::decide(&request, &Policy::default(), None, Container::default()).expect("shares within the default policy");
    let Some(limits) = limits else { return assert!(claims.is_empty(), "a share without limits") };
    let page = limits.page().expect("limits that fit into their page");
    for gpu in page.gpus().filter(|_| !claims.is_empty()) {
        let most: u64 = grants.iter().filter(|grant| !grant.admin).fold(0, |sum, grant| sum.saturating_add(grant.memory));
        assert!((1..=most).contains(&gpu.memory.load(Relaxed)), "{gpu:?} of {grants:?}");
    }
}

/// Returns true if a path is a file in a folder.
fn is_below(path: &Path, folder: &Path) -> bool {
    path.parent().map(PathBuf::from).as_deref() == Some(folder)
}
