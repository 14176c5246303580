//! Requests that are accepted, but hardly meant: they limit nothing, or leave no room for a program.

use crate::inventory::Inventory;
use crate::policy::Policy;
use crate::quantity::{Bytes, MIB};
use crate::request::{GpuRequest, Request};

/// What a CUDA context takes on an H200 (tests/gpu/results).
const CONTEXT: u64 = 518 * MIB;

/// Describes the settings of a request that were hardly meant, for the operator's log. `inventory` has this machine's GPUs, if known.
#[must_use]
pub fn doubts(request: &Request, policy: &Policy, inventory: Option<&Inventory>) -> Vec<String> {
    let largest = inventory.and_then(|known| known.gpus.iter().map(|gpu| gpu.memory).max());
    let dialects = request.dialects.iter();
    let each = dialects.flat_map(|dialect| [&dialect.all].into_iter().chain(dialect.by_index.values()).chain(dialect.by_uuid.values()));
    let mut found: Vec<String> = each.filter_map(|gpu| memory(gpu, largest)).collect();
    found.extend(request.above_all_time.iter().map(|setting| format!("{setting}: above 100 percent of GPU time, so it limits nothing")));
    let all = request.for_gpu(None, None);
    let has_memory = all.memory.is_some() || all.memory_percent.is_some() || policy.defaults.memory.is_some();
    if let Some(spill) = all.spill.filter(|_| !has_memory && policy.defaults.memory_percent.is_none()) {
        found.push(format!("{}: without a limit on memory (nvidia.com/gpumem) it has no effect", spill.setting));
    }
    found
}

/// Describes a doubtful amount of memory. What spills to the host may be more than the GPU has.
fn memory(request: &GpuRequest, largest: Option<u64>) -> Option<String> {
    let memory = request.memory.as_ref()?;
    let bytes = memory.value.get();
    if bytes < CONTEXT {
        return Some(format!("{}: less than a CUDA context alone takes on an H200 ({} MiB)", memory.setting, CONTEXT / MIB));
    }
    let largest = largest.and_then(Bytes::new).filter(|largest| bytes > largest.get() && request.spill.is_none())?;
    Some(format!("{}: more than any GPU of this machine has ({largest}), so it limits nothing", memory.setting))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dialect::{self, Sources};
    use crate::inventory::Gpu;

    #[test]
    fn what_was_hardly_meant_is_described() {
        let gpu = Gpu { index: 0, uuid: "GPU-1".to_owned(), name: "H200".to_owned(), memory: 140 << 30, minor: None, mig: Vec::new() };
        let inventory = Inventory { gpus: vec![gpu] };
        let described = |settings: &[(&str, &str)], policy: &str| {
            let is_variable = |(key, _): &&(&str, &str)| !key.contains('/');
            let owned = |(key, value): &(&str, &str)| ((*key).into(), (*value).into());
            let env: BTreeMap<String, String> = settings.iter().filter(is_variable).map(owned).collect();
            let annotations: BTreeMap<String, String> = settings.iter().filter(|setting| !is_variable(setting)).map(owned).collect();
            let request =
                dialect::read(&Sources { annotations: &annotations, env: &env, container: None, alnair_limits: None, claims: &[] });
            doubts(&request.unwrap(), &Policy::parse(policy).unwrap(), Some(&inventory))
        };
        let (memory, spill) = ("nvidia.com/gpumem", ("nvidia.com/gpumem-oversubscribe", "true"));
        let more = "annotation nvidia.com/gpumem: \"999999\": more than any GPU of this machine has (143360 MiB), so it limits nothing";
        assert_eq!(described(&[(memory, "999999")], ""), [more]);
        let less = "annotation nvidia.com/gpumem: \"1\": less than a CUDA context alone takes on an H200 (518 MiB)";
        assert_eq!(described(&[(memory, "1")], ""), [less]);
        let alone = "annotation nvidia.com/gpumem-oversubscribe: \"true\": without a limit on memory (nvidia.com/gpumem) it has no effect";
        assert_eq!(described(&[spill], ""), [alone]);
        for key in ["CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_1", "CUDA_CORE_LIMIT", "ALNAIR_VGPU_COMPUTE_PERCENTILE"] {
            let above = format!("environment variable {key}: \"500\": above 100 percent of GPU time, so it limits nothing");
            assert_eq!(described(&[(key, "500")], ""), [above]);
            assert_eq!(described(&[(key, "100")], ""), [] as [&str; 0], "the documented value for no limit");
        }
        for (settings, policy) in
            [(&[(memory, "1024")][..], ""), (&[(memory, "999999"), spill], ""), (&[spill], "[defaults]\nmemory_percent = 50")]
        {
            assert_eq!(described(settings, policy), [] as [&str; 0], "{settings:?}");
        }
    }
}
