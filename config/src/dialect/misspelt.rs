//! Keys that are almost those of a limit. Ignoring one would give the container the whole GPU in silence.
//!
//! Only near misses and some likely other names are found: `nvidia.com/` has annotations of many programs, and variables can have any
//! name.

use std::collections::BTreeMap;

use crate::dialect::annotations::{
    CORES, CORES_SOFT, COUNT, EVICTABLE, MEMORY, MEMORY_PERCENT, NOUSE_TYPE, NOUSE_UUID, OVERSUBSCRIBE, PRIORITY, USE_TYPE, USE_UUID,
};
use crate::error::{Error, Result};
use crate::setting::Setting;
use crate::spelling::{did_you_mean, letters, nearest};

/// Prefix of vgpu's annotations.
const PREFIX: &str = "nvidia.com/";
/// vgpu's annotations.
const ANNOTATIONS: [&str; 12] =
    [MEMORY, MEMORY_PERCENT, CORES, CORES_SOFT, COUNT, USE_UUID, NOUSE_UUID, USE_TYPE, NOUSE_TYPE, PRIORITY, OVERSUBSCRIBE, EVICTABLE];
/// Other names by which vgpu's annotations are likely called, without separators. NVIDIA's GPU Feature Discovery has labels such as
/// `nvidia.com/gpu.memory`, whose name ends at the dot and is none of these.
const ALIASES: [(&str, &str); 23] = [
    ("core", CORES),
    ("cores", CORES),
    ("corespercentage", CORES),
    ("coressoft", CORES_SOFT),
    ("gpucorelimit", CORES),
    ("gpucorepercentage", CORES),
    ("gpucorespercentage", CORES),
    ("gpucount", COUNT),
    ("gpumemory", MEMORY),
    ("gpumemorylimit", MEMORY),
    ("gpumemorypercent", MEMORY_PERCENT),
    ("gpumemorypercentage", MEMORY_PERCENT),
    ("gpupriority", PRIORITY),
    ("gpuram", MEMORY),
    ("gpuvram", MEMORY),
    ("mem", MEMORY),
    ("memory", MEMORY),
    ("memorypercentage", MEMORY_PERCENT),
    ("mempercentage", MEMORY_PERCENT),
    ("vgpucores", CORES),
    ("vgpumem", MEMORY),
    ("vgpumemory", MEMORY),
    ("vram", MEMORY),
];
/// Variables that limit, of all dialects. Some may end in the index of a GPU.
const VARIABLES: [&str; 9] = [
    "ALNAIR_VGPU_COMPUTE_PERCENTILE",
    "CUDA_CORE_LIMIT",
    "CUDA_CORE_SOFT_LIMIT",
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_MEM_LIMIT",
    "CUDA_MEM_OVERSOLD",
    "CUDA_MEM_RATIO",
    "GPU_CORE_UTILIZATION_POLICY",
];
/// Length of an annotation divided by the most typos in it.
const ANNOTATION_TYPOS: usize = 4;
/// Length of a variable divided by the most typos in it.
const VARIABLE_TYPOS: usize = 6;

/// Refuses keys that are almost those of a limit.
///
/// # Errors
/// The first such key, with the one that was probably meant.
pub fn check(annotations: &BTreeMap<String, String>, env: &BTreeMap<String, String>) -> Result<()> {
    for (key, value) in annotations {
        if let Some(meant) = annotation(key) {
            return Err(unknown(&Setting::annotation(key, value), meant));
        }
    }
    for (key, value) in env {
        if let Some(meant) = variable(key) {
            return Err(unknown(&Setting::environment(key, value), meant));
        }
    }
    Ok(())
}

fn unknown(setting: &Setting, meant: &str) -> Error {
    setting.refused(format!("a known key: {}", did_you_mean(meant)))
}

/// Returns the annotation that was probably meant. A key may have a container's name after a dot, and so may those of other programs.
fn annotation(key: &str) -> Option<&'static str> {
    let name = key.strip_prefix(PREFIX)?.split('.').next()?;
    let known = || ANNOTATIONS.into_iter().map(|known| (known, &known[PREFIX.len()..]));
    if known().any(|(_, known)| known == name) {
        return None;
    }
    let letters = letters(name);
    let alias = ALIASES.into_iter().find_map(|(alias, meant)| (alias == letters).then_some(meant));
    // `vgpu.present` and others are GPU Feature Discovery's, as is `gpu.present`.
    let is_label = |meant: &&str| *meant == COUNT && key[PREFIX.len()..].contains('.');
    alias.or_else(|| nearest(name, known(), ANNOTATION_TYPOS)).filter(|meant| !is_label(meant))
}

/// Returns the variable that was probably meant.
fn variable(key: &str) -> Option<&'static str> {
    // The index is checked by the variable's dialect.
    let is_known = |known: &&str| key.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    if VARIABLES.iter().any(is_known) {
        return None;
    }
    let without_index = key.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix('_').unwrap_or(key);
    nearest(without_index, VARIABLES.into_iter().map(|known| (known, known)), VARIABLE_TYPOS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_refused_with_a_suggestion() {
        for (key, meant) in [
            ("nvidia.com/gpumems", MEMORY),
            ("nvidia.com/gpu-mem", MEMORY),
            ("nvidia.com/GPUMem", MEMORY),
            ("nvidia.com/gpumme", MEMORY),
            ("nvidia.com/gpumems.main", MEMORY),
            ("nvidia.com/gpumem-percent", MEMORY_PERCENT),
            ("nvidia.com/gpumem_percentage", MEMORY_PERCENT),
            ("nvidia.com/gpucore", CORES),
            ("nvidia.com/gpu-cores", CORES),
            ("nvidia.com/gpucoressoft", CORES_SOFT),
            ("nvidia.com/gpumem-oversubscribed", OVERSUBSCRIBE),
            ("nvidia.com/use-gpuuid", USE_UUID),
            ("nvidia.com/gpus", COUNT),
            ("nvidia.com/gpusoft-cores", CORES_SOFT),
            ("nvidia.com/gpumemory", MEMORY),
            ("nvidia.com/gpu-memory", MEMORY),
            ("nvidia.com/GPU_memory.main", MEMORY),
            ("nvidia.com/memory", MEMORY),
            ("nvidia.com/vgpu-memory", MEMORY),
            ("nvidia.com/gpu-memory-percentage", MEMORY_PERCENT),
            ("nvidia.com/cores", CORES),
            ("nvidia.com/cores-soft", CORES_SOFT),
            ("nvidia.com/vgpu-cores", CORES),
        ] {
            let annotations = BTreeMap::from([(key.to_owned(), "1024".to_owned())]);
            let message = check(&annotations, &BTreeMap::new()).unwrap_err().to_string();
            assert_eq!(message, format!("annotation {key}: \"1024\": expected a known key: did you mean {meant}?"));
        }
        for (key, meant) in [
            ("CUDA_DEVICE_MEMORY_LIMITS", "CUDA_DEVICE_MEMORY_LIMIT"),
            ("CUDA_DEVICE_MEMORY_LIMT_0", "CUDA_DEVICE_MEMORY_LIMIT"),
            ("CUDA_MEMLIMIT", "CUDA_MEM_LIMIT"),
            ("CUDA_CORES_LIMIT_1", "CUDA_CORE_LIMIT"),
        ] {
            assert_eq!(variable(key), Some(meant), "{key}");
        }
    }

    #[test]
    fn known_and_foreign_keys_are_left_alone() {
        // GPU Feature Discovery's labels, and those of the GPU Operator.
        let discovered = ["gpu.memory", "gpu.count", "gpu.replicas", "gpu.family", "gpu.compute.major", "gpu.machine", "gpu.mode"];
        let more = ["mig-1g.5gb.memory", "mig-1g.5gb.count", "mps.capable", "vgpu.present", "sharing-strategy", "gpu-driver-upgrade-state"];
        let foreign = ["gpu.present", "gpu.product", "mig.strategy", "cuda.driver.major", "vgpu-mode", "gfd.timestamp"];
        let foreign = discovered.into_iter().chain(more).chain(foreign).map(|name| format!("{PREFIX}{name}"));
        let others = [
            "hami.io/gpumems",
            "volcano.sh/vgpu-memory",
            "amd.com/gpu-memory",
            "nvidia.com",
            "nvidia.com/",
            "example.com/gpumems",
            "gpumems",
            "cpu",
        ]
        .map(str::to_owned);
        let known = ANNOTATIONS.into_iter().flat_map(|key| [key.to_owned(), format!("{key}.main")]);
        for key in known.chain(foreign).chain(others).chain(["x".repeat(100_000)]) {
            assert_eq!(annotation(&key), None, "{key}");
        }
        for key in
            ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MEMORY_OVERSUBSCRIBE", "PATH", "", "_0"]
        {
            assert_eq!(variable(key), None, "{key}");
        }
        for key in VARIABLES {
            assert_eq!((variable(key), variable(&format!("{key}_0"))), (None, None), "{key}");
        }
    }
}
