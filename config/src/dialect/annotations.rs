//! vgpu's own annotations, `nvidia.com/…`. The same key with `.<container>` behind it is for that container of the pod only,
//! and wins over the pod-wide one.

use crate::dialect::parse::{priority, said, switch};
use crate::dialect::sources::Sources;
use crate::error::Result;
use crate::quantity::{ANNOTATION, number, percent};
use crate::request::{Claim, Request, Spill};
use crate::setting::{Said, Setting};

/// Device memory for each GPU; a bare number is MiB.
pub const MEMORY: &str = "nvidia.com/gpumem";
/// Device memory in percent of each GPU's.
pub const MEMORY_PERCENT: &str = "nvidia.com/gpumem-percentage";
/// Compute time of each GPU in percent.
pub const CORES: &str = "nvidia.com/gpucores";
/// Compute time in percent while nobody else wants the GPU.
pub const CORES_SOFT: &str = "nvidia.com/gpucores-soft";
/// How many GPUs.
pub const COUNT: &str = "nvidia.com/gpu";
/// Only these GPUs.
pub const USE_UUID: &str = "nvidia.com/use-gpuuuid";
/// None of these GPUs.
pub const NOUSE_UUID: &str = "nvidia.com/nouse-gpuuuid";
/// Only GPUs whose product name contains one of these.
pub const USE_TYPE: &str = "nvidia.com/use-gputype";
/// No GPU whose product name contains one of these.
pub const NOUSE_TYPE: &str = "nvidia.com/nouse-gputype";
/// 0 is high, 1 the default.
pub const PRIORITY: &str = "nvidia.com/priority";
/// Memory over the limit spills to the host.
pub const OVERSUBSCRIBE: &str = "nvidia.com/gpumem-oversubscribe";

const PERCENT: &str = "a whole number of percent from 1 to 100";

/// Reads the annotations into a claim, and what is not about one GPU into `request`.
///
/// # Errors
/// The first value that is not as documented, or a container's key where the container's name is not known.
pub fn read(sources: &Sources<'_>, request: &mut Request) -> Result<Claim> {
    let mut claim = Claim::default();
    let said_of = |key| find(sources, key);
    let all = &mut claim.all;
    if let Some(setting) = said_of(MEMORY)? {
        all.memory = Some(said(setting, |text| ANNOTATION.parse(text), ANNOTATION.accepted)?);
    }
    if let Some(setting) = said_of(MEMORY_PERCENT)? {
        all.memory_percent = Some(said(setting, percent, PERCENT)?);
    }
    if let Some(setting) = said_of(CORES)? {
        all.cores = Some(said(setting, percent, PERCENT)?);
    }
    if let Some(setting) = said_of(CORES_SOFT)? {
        let soft = said(setting, percent, PERCENT)?;
        match &all.cores {
            Some(cores) if cores.value <= soft.value => all.cores_soft = Some(soft),
            Some(_) => return Err(soft.by.refused(format!("at least the {CORES} of the same container"))),
            None => return Err(soft.by.refused(format!("a soft limit above {CORES}, which is not set"))),
        }
    }
    if let Some(setting) = said_of(OVERSUBSCRIBE)?
        && switch(&setting)?
    {
        all.spill = Some(Said { value: Spill::Allowed, by: setting });
    }
    if let Some(setting) = said_of(PRIORITY)? {
        request.demote(priority(setting)?);
    }
    if let Some(setting) = said_of(COUNT)? {
        let few = |text: &str| number(text).filter(|&count| count <= vgpu_region::MAX_GPUS as u64).map(|count| count as u32);
        request.choice.count = Some(said(setting, few, "a whole number of GPUs from 1 to 16")?);
    }
    for (key, list) in [(USE_UUID, &mut request.choice.use_uuid), (NOUSE_UUID, &mut request.choice.nouse_uuid)] {
        if let Some(setting) = said_of(key)? {
            *list = Some(said(setting, uuids, "a comma list of UUIDs such as GPU-01234567-89ab-cdef-0123-456789abcdef")?);
        }
    }
    for (key, list) in [(USE_TYPE, &mut request.choice.use_type), (NOUSE_TYPE, &mut request.choice.nouse_type)] {
        if let Some(setting) = said_of(key)? {
            *list = Some(said(setting, types, "a comma list of parts of product names such as H200,A100")?);
        }
    }
    Ok(claim)
}

/// The setting of `key` for this container: its own first, else the pod's.
fn find(sources: &Sources<'_>, key: &str) -> Result<Option<Setting>> {
    let own = sources.container.map(|name| format!("{key}.{name}"));
    if let Some((key, value)) = own.and_then(|key| sources.annotations.get_key_value(&key)) {
        return Ok(Some(Setting::annotation(key, value)));
    }
    // `nvidia.com/gpu.…` has other users than us (node features), so it is no sign of a limit that would be missed.
    if sources.container.is_none() && key != COUNT {
        let prefix = format!("{key}.");
        if let Some((name, value)) = sources.annotations.range(prefix.clone()..).next()
            && name.starts_with(&prefix)
        {
            return Err(Setting::annotation(name, value)
                .refused(format!("{key} without a container's name: the runtime did not say which container of a pod this is")));
        }
    }
    Ok(sources.annotations.get(key).map(|value| Setting::annotation(key, value)))
}

fn uuids(text: &str) -> Option<Vec<String>> {
    text.split(',').map(|uuid| crate::devices::uuid(uuid).map(|_| uuid.to_owned())).collect()
}

fn types(text: &str) -> Option<Vec<String>> {
    let plain = |part: &str| !part.is_empty() && part.len() <= 96 && !part.chars().any(char::is_control);
    text.split(',').map(str::trim).map(|part| plain(part).then(|| part.to_lowercase())).collect()
}
