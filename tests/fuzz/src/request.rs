//! Requests of all dialects under any policy: a ceiling always holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use arbitrary::{Arbitrary, Unstructured};
use vgpu_config::decide::Container;
use vgpu_config::dialect::claims::ClaimFile;
use vgpu_config::dialect::{self, Sources};
use vgpu_config::{Inventory, Policy};

/// Keys of annotations and variables that some dialect reads.
const KEYS: &[&str] = &[
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/gpucores-soft",
    "nvidia.com/gpu",
    "nvidia.com/priority",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/use-gputype",
    "nvidia.com/oversubscribe",
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-devices-to-allocate",
    "volcano.sh/gpu-index",
    "gpu-fraction",
    "gpu-memory",
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_MEMORY_LIMIT_1",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_OVERSUBSCRIBE",
    "CUDA_TASK_PRIORITY",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    "CUDA_DISABLE_CONTROL",
    "DISABLE_VGPU_CONTROL",
    "GPU_CORE_UTILIZATION_POLICY",
    "CUDA_MEM_LIMIT",
    "CUDA_MEM_LIMIT_0",
    "CUDA_MEM_RATIO",
    "CUDA_MEM_RATIO_0",
    "CUDA_MEM_OVERSOLD",
    "CUDA_CORE_LIMIT",
    "CUDA_CORE_LIMIT_0",
    "CUDA_CORE_SOFT_LIMIT",
    "CUDA_CORE_SOFT_LIMIT_0",
    "MANAGER_VISIBLE_DEVICE_0",
    "VOLCANO_GPU_ALLOCATED",
    "VOLCANO_GPU_MEMORY_TOTAL",
    "VGPU_POD_MEMORY_LIMIT",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "VGPU_LOG",
    "WORKSPACE",
    "PFLOG",
    "ID",
];

/// Values at the borders of what the dialects accept.
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "2",
    "50",
    "99",
    "100",
    "101",
    "-1",
    "0Mi",
    "1Mi",
    "64m",
    "128Mi",
    "1024",
    "4Gi",
    "1T",
    "18446744073709551615",
    "0.5",
    "1.5",
    "1e3",
    "true",
    "false",
    "all",
    "none",
    "void",
    "compute,utility",
    "GPU-00000000-0000-0000-0000-000000000001",
    "/a/b",
    "../x",
    "disable",
    "force",
    "default",
];

/// Text of an annotation or a variable.
#[derive(Arbitrary, Debug)]
enum Text {
    /// One of [`VALUES`].
    Known(u8),
    /// Any text.
    Any(String),
}

impl Text {
    fn get(&self) -> String {
        match self {
            Self::Known(index) => VALUES[usize::from(*index) % VALUES.len()].to_owned(),
            Self::Any(text) => text.clone(),
        }
    }
}

/// A container's request and the operator's policy.
#[derive(Arbitrary, Debug)]
struct Input {
    annotations: Vec<(u8, Text)>,
    env: Vec<(u8, Text)>,
    other: Vec<(String, String)>,
    claims: Vec<(u64, Option<u8>)>,
    namespace: Option<bool>,
    memory_ceiling: Option<u32>,
    memory_percent_ceiling: Option<u8>,
    cores_ceiling: Option<u8>,
    oversubscribe: Option<u16>,
    clamp: bool,
    pass: bool,
    gpus: u8,
    minors: Vec<u8>,
}

/// Reads a request and decides its limits. Asserts that the ceilings hold.
pub fn request(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let Ok(policy) = Policy::parse(&policy(&input)) else { return };
    let pairs = |list: &[(u8, Text)]| -> BTreeMap<String, String> {
        list.iter().map(|(key, text)| (KEYS[usize::from(*key) % KEYS.len()].to_owned(), text.get())).collect()
    };
    let (mut annotations, mut env) = (pairs(&input.annotations), pairs(&input.env));
    for (index, (key, value)) in input.other.iter().enumerate() {
        let place = if index % 2 == 0 { &mut annotations } else { &mut env };
        place.insert(key.clone(), value.clone());
    }
    let claims: Vec<ClaimFile> = input.claims.iter().take(3).enumerate().map(|(index, share)| claim(index, *share)).collect();
    let sources = Sources { annotations: &annotations, env: &env, container: Some("main"), alnair_limits: None, claims: &claims };
    let Ok(request) = dialect::read(&sources) else { return };
    let inventory = (input.gpus % 4 != 0).then(|| inventory(input.gpus % 4));
    let minors: Vec<u32> = input.minors.iter().map(|minor| u32::from(minor % 4)).collect();
    let namespace = input.namespace.map(|trusted| if trusted { "trusted" } else { "other" });
    let container = Container { namespace, minors: &minors };
    let Ok(limits) = vgpu_config::decide(&request, &policy, inventory.as_ref(), container) else { return };
    let may_opt_out = namespace == Some("trusted");
    let is_passed = input.pass && request.dialects.is_empty();
    let Some(limits) = limits else {
        // 100% of the time is no limit, and so no ceiling.
        let is_time_limited = input.cores_ceiling.is_some_and(|ceiling| (1..100).contains(&ceiling));
        let has_ceiling = policy.ceilings.memory.is_some() || is_time_limited || policy.ceilings.memory_percent.is_some();
        assert!(may_opt_out || is_passed || !has_ceiling, "a ceiling was passed: {input:?}");
        return;
    };
    if may_opt_out || is_passed {
        return;
    }
    let page = limits.page().expect("limits that fit into their page");
    for entry in page.gpus() {
        if let Some(ceiling) = input.memory_ceiling {
            let bytes = entry.memory.load(Relaxed);
            let by_percent = bytes == 0 && entry.memory_percent.load(Relaxed) != 0;
            assert!(by_percent || (1..=u64::from(ceiling.max(1)) << 20).contains(&bytes), "{bytes} bytes: {input:?}");
        }
        if let Some(ceiling) = input.cores_ceiling.filter(|ceiling| (1..100).contains(ceiling)) {
            let cores = entry.cores.load(Relaxed);
            assert!((1..=u32::from(ceiling)).contains(&cores), "{cores}% of GPU time: {input:?}");
        }
    }
    if input.memory_ceiling.is_some() || input.cores_ceiling.is_some_and(|ceiling| (1..100).contains(&ceiling)) {
        assert!(page.gpus().next().is_some(), "a page without limits: {input:?}");
    }
}

/// Returns the policy's text.
fn policy(input: &Input) -> String {
    let mut text = String::new();
    text += if input.clamp { "over_ceiling = \"clamp\"\n" } else { "" };
    text += if input.pass { "without_request = \"pass\"\n" } else { "" };
    text += "[opt_out]\nnamespaces = [\"trusted\"]\n[ceilings]\n";
    text += &input.memory_ceiling.map_or_else(String::new, |mib| format!("memory = \"{}Mi\"\n", mib.max(1)));
    text += &input.memory_percent_ceiling.map_or_else(String::new, |percent| format!("memory_percent = {percent}\n"));
    text += &input.cores_ceiling.map_or_else(String::new, |percent| format!("cores = {percent}\n"));
    text += &input.oversubscribe.map_or_else(String::new, |percent| format!("oversubscribe_percent = {percent}\n"));
    text
}

/// Returns a claim's file with a share of this memory and GPU time.
fn claim(index: usize, (memory, cores): (u64, Option<u8>)) -> ClaimFile {
    let cores = cores.map_or_else(String::new, |cores| format!(r#","cores":{cores}"#));
    let uuid = format!("GPU-00000000-0000-0000-0000-00000000000{}", index % 2 + 1);
    let text = format!(r#"{{"claim":"default/a","gpu":"{uuid}","memory":{memory}{cores}}}"#);
    ClaimFile { path: PathBuf::from(format!("/run/vgpu/claims/{index}")), text: Some(text) }
}

/// Returns an inventory of this many GPUs.
fn inventory(count: u8) -> Inventory {
    let gpu = |index: u8| {
        let number = index + 1;
        format!(
            r#"{{"index":{index},"uuid":"GPU-00000000-0000-0000-0000-00000000000{number}","name":"A","memory":{},"minor":{index}}}"#,
            if index == 2 { 50 } else { 85_899_345_920_u64 }
        )
    };
    let gpus: Vec<String> = (0..count).map(gpu).collect();
    serde_json::from_str(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(","))).expect("an inventory")
}
