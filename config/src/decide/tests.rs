//! Decisions from requests and policies.

use std::collections::BTreeMap;

use super::*;
use crate::dialect::{self, Sources};
use crate::inventory::Gpu;
use crate::policy::OptOut;
use crate::quantity::Bytes;

const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000002";
const GIB: u64 = 1 << 30;

/// Keys and values of annotations and variables.
type Pairs<'a> = &'a [(&'a str, &'a str)];
/// A description, the settings, the policy's text, and the expected result.
type Case<'a, T> = (&'a str, Pairs<'a>, &'a str, T);

/// Decides for annotations (keys with a slash) and variables under a policy's text.
fn decided(settings: &[(&str, &str)], policy: &str, inventory: Option<&Inventory>) -> Result<Option<Limits>> {
    let all = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let (annotations, env): (BTreeMap<_, _>, BTreeMap<_, _>) = all.partition(|(key, _)| key.contains('/'));
    let sources = Sources { annotations: &annotations, env: &env, container: None, alnair_limits: None, claims: &[] };
    let policy = Policy::parse(policy).unwrap();
    decide(&dialect::read(&sources)?, &policy, inventory, Container { namespace: Some("default"), minors: &[] })
}

fn inventory() -> Inventory {
    let gpu = |index, uuid: &str| Gpu { index, uuid: uuid.into(), name: "NVIDIA H200".into(), memory: 100 * GIB, minor: None, mig: vec![] };
    Inventory { gpus: vec![gpu(0, A), gpu(1, B)] }
}

fn one(memory: Option<u64>, memory_percent: Option<u32>, cores: Option<u32>) -> Vec<GpuLimits> {
    vec![GpuLimits { memory: memory.and_then(Bytes::new), memory_percent, cores, ..GpuLimits::none(Which::All) }]
}

#[test]
fn limits_of_unknown_gpus() {
    let memory = ("nvidia.com/gpumem", "1024");
    let cases: [Case<Result<Vec<GpuLimits>, &str>>; 14] = [
        ("as requested", &[memory, ("nvidia.com/gpucores", "30")], "", Ok(one(Some(GIB), None, Some(30)))),
        ("a percentage stays a percentage", &[("nvidia.com/gpumem-percentage", "25")], "", Ok(one(None, Some(25), None))),
        ("a default fills in", &[memory], "[defaults]\ncores = 20", Ok(one(Some(GIB), None, Some(20)))),
        ("a request replaces a default", &[memory], "[defaults]\nmemory = \"9g\"\nmemory_percent = 3", Ok(one(Some(GIB), None, None))),
        ("no request, a default", &[], "[defaults]\nmemory_percent = 50", Ok(one(None, Some(50), None))),
        ("no request, a ceiling", &[], "[ceilings]\nmemory = \"2g\"", Ok(one(Some(2 * GIB), None, None))),
        ("under a ceiling", &[memory], "[ceilings]\nmemory = \"2g\"", Ok(one(Some(GIB), None, None))),
        ("over a ceiling", &[memory], "[ceilings]\nmemory = \"512m\"", Err("at most 512 MiB (the operator's ceiling)")),
        ("clamped to a ceiling", &[memory], "over_ceiling = \"clamp\"\n[ceilings]\nmemory = \"512m\"", Ok(one(Some(GIB / 2), None, None))),
        ("cores over a ceiling", &[("nvidia.com/gpucores", "90")], "[ceilings]\ncores = 80", Err("at most 80 percent")),
        ("100 percent is no limit", &[memory, ("nvidia.com/gpucores", "100")], "", Ok(one(Some(GIB), None, None))),
        (
            "bytes and percent cannot be compared",
            &[memory],
            "[ceilings]\nmemory_percent = 50",
            Err("nvidia.com/gpumem: \"1024\": expected memory in the same unit"),
        ),
        ("no request, refused", &[], "without_request = \"refuse\"", Err("has a GPU and no limit")),
        ("a default over a ceiling is clamped", &[], "[defaults]\ncores = 90\n[ceilings]\ncores = 80", Ok(one(None, None, Some(80)))),
    ];
    for (description, settings, policy, expected) in cases {
        match (decided(settings, policy, None), expected) {
            (Ok(limits), Ok(expected)) => assert_eq!(limits.unwrap().gpus, expected, "{description}"),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{description}: {error}"),
            (limits, expected) => panic!("{description}: {limits:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn containers_without_limits() {
    let memory = ("nvidia.com/gpumem", "1024");
    let cases: [Case<bool>; 6] = [
        ("no request, no default", &[], "", true),
        ("no request, without_request = pass", &[], "without_request = \"pass\"\n[ceilings]\nmemory = \"1g\"", true),
        ("an opt-out that is not allowed", &[memory, ("CUDA_DISABLE_CONTROL", "true")], "", false),
        ("an opt-out that is allowed", &[memory, ("CUDA_DISABLE_CONTROL", "true")], "[opt_out]\nnamespaces = [\"default\"]", true),
        (
            "an opt-out that is allowed to another namespace",
            &[memory, ("DISABLE_VGPU_CONTROL", "1")],
            "[opt_out]\nnamespaces = [\"kube-system\"]",
            false,
        ),
        ("an opt-out that is allowed to all", &[memory, ("DISABLE_VGPU_CONTROL", "1")], "[opt_out]\nanyone = true", true),
    ];
    for (description, settings, policy, unlimited) in cases {
        assert_eq!(decided(settings, policy, None).unwrap().is_none(), unlimited, "{description}");
    }
    assert!(!OptOut::default().allows(Some("default")));
    let free = decided(&[("nvidia.com/gpucores", "30"), ("GPU_CORE_UTILIZATION_POLICY", "disable")], "[opt_out]\nanyone = true", None);
    assert_eq!(free.unwrap(), None, "opted out of the only limit");
}

#[test]
fn limits_by_index_and_by_uuid() {
    let entry = |gpu, memory| GpuLimits { memory: Bytes::new(memory), ..GpuLimits::none(gpu) };
    let uuid = |uuid: &str| Which::Uuid(uuid.to_owned());
    let settings = [("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g")];

    let gpus = decided(&settings, "", None).unwrap().unwrap().gpus;
    assert_eq!(gpus, [entry(Which::Index(0), GIB), entry(Which::Index(1), 2 * GIB)], "unknown GPUs are named by index");

    let list = format!("{B},{A}");
    let visible = [settings[0], settings[1], ("NVIDIA_VISIBLE_DEVICES", &list)];
    let gpus = decided(&visible, "", None).unwrap().unwrap().gpus;
    let expected = [entry(uuid(B), GIB), entry(uuid(A), 2 * GIB), entry(Which::All, GIB)];
    assert_eq!(gpus, expected, "indices count listed GPUs, and an unlisted GPU gets the strictest limit");

    let order = [settings[0], settings[1], ("MANAGER_VISIBLE_DEVICES", &list)];
    assert_eq!(decided(&order, "", None).unwrap().unwrap().gpus, expected, "a device plugin's order");

    let all = [settings[0], ("NVIDIA_VISIBLE_DEVICES", "all")];
    let gpus = decided(&all, "", Some(&inventory())).unwrap().unwrap().gpus;
    assert_eq!(gpus, [entry(uuid(A), GIB), GpuLimits::none(uuid(B)), entry(Which::All, GIB)], "the inventory's order");

    let percent = [("nvidia.com/gpumem-percentage", "25"), ("NVIDIA_VISIBLE_DEVICES", "1")];
    let gpus = decided(&percent, "[ceilings]\nmemory = \"50g\"", Some(&inventory())).unwrap().unwrap().gpus;
    assert_eq!(gpus[0], entry(uuid(B), 25 * GIB), "a percentage of a known total becomes bytes");
}

#[test]
fn visible_devices_are_narrowed() {
    let devices =
        |settings: &[(&str, &str)], inventory| decided(settings, "", inventory).map(|limits| limits.and_then(|limits| limits.devices));
    let known = inventory();
    let all = ("NVIDIA_VISIBLE_DEVICES", "all");
    assert_eq!(devices(&[all, ("nvidia.com/gpu", "1")], Some(&known)).unwrap(), Some(vec![A.to_owned()]));
    assert_eq!(devices(&[all, ("nvidia.com/gpu", "1")], None).unwrap(), Some(vec!["0".to_owned()]), "the first of all");
    assert_eq!(devices(&[all, ("nvidia.com/use-gpuuuid", B)], Some(&known)).unwrap(), Some(vec![B.to_owned()]));
    assert_eq!(devices(&[all], Some(&known)).unwrap(), None, "no choice, no change");
    assert_eq!(devices(&[("NVIDIA_VISIBLE_DEVICES", "1"), ("nvidia.com/gpu", "1")], Some(&known)).unwrap(), None, "unchanged");
    let message = devices(&[all, ("nvidia.com/gpu", "3")], Some(&known)).unwrap_err().to_string();
    assert!(message.contains(A) && message.contains(B) && message.contains("only 2 GPUs match"), "{message}");
    assert!(devices(&[("nvidia.com/gpu", "1")], None).is_err(), "an annotation grants no GPU");
}

#[test]
fn oversubscription_stays_under_the_ceiling() {
    let spilled = |settings: (&str, &str), policy| {
        decided(&[("nvidia.com/gpumem", "1024"), settings], policy, None).map(|limits| {
            let gpu = &limits.unwrap().gpus[0];
            (gpu.memory.map(Bytes::get), gpu.spill)
        })
    };
    let ours = ("nvidia.com/gpumem-oversubscribe", "true");
    assert_eq!(spilled(ours, "").unwrap(), (Some(GIB), Some(GIB)));
    assert_eq!(spilled(ours, "[ceilings]\noversubscribe_percent = 50").unwrap(), (Some(GIB), Some(GIB / 2)));
    assert!(spilled(ours, "[ceilings]\noversubscribe_percent = 0").unwrap_err().to_string().contains("at most 0 percent"));
    let none = spilled(ours, "over_ceiling = \"clamp\"\n[ceilings]\noversubscribe_percent = 0").unwrap();
    assert_eq!(none, (Some(GIB), None));
    assert_eq!(spilled(("CUDA_MEM_RATIO", "2"), "").unwrap(), (Some(GIB / 2), Some(GIB / 2)), "part of the limit is on the host");
    assert!(spilled(("CUDA_MEM_RATIO", "4"), "").is_err());
    let percent = decided(&[("nvidia.com/gpumem-percentage", "10"), ours], "", None).unwrap_err().to_string();
    assert!(percent.contains("given in bytes"), "{percent}");
}

#[test]
fn memory_is_overcommitted_where_the_policy_says_so() {
    let policy = "[overcommit]\nenabled = true";
    let (limit, evictable) = (("nvidia.com/gpumem", "1024"), ("nvidia.com/gpumem-evictable", "true"));
    let kind = |settings: Pairs, policy| decided(settings, policy, None).map(|limits| limits.unwrap().gpus[0].overcommit);
    assert_eq!(kind(&[limit], "").unwrap(), Overcommit::None);
    assert_eq!(kind(&[limit], policy).unwrap(), Overcommit::Resident);
    assert_eq!(kind(&[limit, evictable], policy).unwrap(), Overcommit::Evictable);
    assert_eq!(kind(&[limit, ("nvidia.com/gpumem-evictable", "false")], policy).unwrap(), Overcommit::Resident);
    for (settings, policy, expected) in
        [(&[limit, evictable][..], "", "overcommit.enabled"), (&[("nvidia.com/gpucores", "10"), evictable], policy, "nvidia.com/gpumem)")]
    {
        let message = kind(settings, policy).unwrap_err().to_string();
        assert!(message.contains("nvidia.com/gpumem-evictable") && message.contains(expected), "{message}");
    }
}

#[test]
fn a_limit_that_comes_to_nothing_is_the_smallest_limit() {
    let clamped = "over_ceiling = \"clamp\"\n[ceilings]\nmemory = \"128m\"";
    let mut tiny = inventory();
    tiny.gpus.iter_mut().for_each(|gpu| gpu.memory = 10);
    let cases: [(&str, Pairs, &str, Option<&Inventory>); 3] = [
        ("a ratio", &[("CUDA_MEM_LIMIT", "1"), ("CUDA_MEM_RATIO", "2")], clamped, None),
        ("a percentage", &[("nvidia.com/gpumem-percentage", "1"), ("NVIDIA_VISIBLE_DEVICES", "0")], "", Some(&tiny)),
        ("a ceiling in percent", &[("NVIDIA_VISIBLE_DEVICES", "0")], "[ceilings]\nmemory_percent = 1", Some(&tiny)),
    ];
    for (description, settings, policy, inventory) in cases {
        let page = decided(settings, policy, inventory).unwrap().unwrap().page().unwrap();
        assert!(page.gpus().all(|gpu| gpu.memory_for(GIB) == Some(1)), "{description}");
    }
}

#[test]
fn driver_capabilities_are_narrowed() {
    let kept = |capabilities: &str, policy: &str| {
        let settings = [("nvidia.com/gpumem", "1"), ("NVIDIA_VISIBLE_DEVICES", "0"), ("NVIDIA_DRIVER_CAPABILITIES", capabilities)];
        decided(&settings, policy, None).map(|limits| limits.unwrap().driver_capabilities)
    };
    assert_eq!(kept("compute,utility", "").unwrap(), None);
    assert_eq!(kept("all", "").unwrap().as_deref(), Some("compute,utility"));
    assert_eq!(kept("compute,graphics", "").unwrap().as_deref(), Some("compute"));
    assert_eq!(kept("graphics", "").unwrap().as_deref(), Some("compute,utility"), "an empty list would select the default");
    assert_eq!(kept("video", "driver_capabilities.allow = [\"video\"]").unwrap(), None);
    let unset = |image: &[(&str, &str)]| {
        let settings = [&[("nvidia.com/gpumem", "1"), ("NVIDIA_VISIBLE_DEVICES", "0")], image].concat();
        decided(&settings, "", None).unwrap().unwrap().driver_capabilities
    };
    assert_eq!(unset(&[]), None, "the toolkit's default has no more");
    assert_eq!(
        unset(&[("CUDA_VERSION", "9.0")]).as_deref(),
        Some("compute,utility"),
        "the toolkit would give an old image all capabilities"
    );
    assert_eq!(unset(&[("CUDA_VERSION", "12.4"), ("NVIDIA_REQUIRE_CUDA", "cuda>=12.4")]), None);
    let message = kept("all", "driver_capabilities.otherwise = \"refuse\"").unwrap_err().to_string();
    assert!(message.contains(r#"NVIDIA_DRIVER_CAPABILITIES: "all": expected a comma-separated list of compute,utility"#), "{message}");
}

#[test]
fn priorities_stay_under_the_ceiling() {
    let priority =
        |policy: &str| decided(&[("nvidia.com/gpumem", "1"), ("nvidia.com/priority", "0")], policy, None).unwrap().unwrap().priority;
    assert_eq!((priority(""), priority("[ceilings]\npriority = 1")), (0, 1));
}
