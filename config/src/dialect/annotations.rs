//! vgpu's own annotations, `nvidia.com/…`. A key with the suffix `.<container>` applies to that container of the pod only, and overrides
//! the key without it.

use crate::devices;
use crate::dialect::parse::{memory, parse, priority, switch};
use crate::dialect::sources::Sources;
use crate::error::Result;
use crate::quantity::{ANNOTATION, PERCENT, Percent, number, percent, percent_advice};
use crate::request::{GpuRequests, Request, Spill};
use crate::setting::{Setting, Sourced};

/// Device memory of each GPU; a bare number is MiB.
pub const MEMORY: &str = "nvidia.com/gpumem";
/// Device memory in percent of each GPU's.
pub const MEMORY_PERCENT: &str = "nvidia.com/gpumem-percentage";
/// GPU time of each GPU in percent.
pub const CORES: &str = "nvidia.com/gpucores";
/// GPU time in percent while the GPU is otherwise idle.
pub const CORES_SOFT: &str = "nvidia.com/gpucores-soft";
/// Number of GPUs.
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
/// Memory beyond the limit spills to the host.
pub const OVERSUBSCRIBE: &str = "nvidia.com/gpumem-oversubscribe";

/// Memory moves to the host while others need the GPU's.
pub const EVICTABLE: &str = "nvidia.com/gpumem-evictable";

/// Reads the annotations for GPUs, and all others into `request`.
///
/// # Errors
/// The first value that is not documented, or a container's key where the container's name is not known.
pub fn read(sources: &Sources<'_>, request: &mut Request) -> Result<GpuRequests> {
    let mut requests = GpuRequests::default();
    let setting_of = |key| find(sources, key);
    let all = &mut requests.all;
    all.memory = setting_of(MEMORY)?.map(|setting| memory(setting, &ANNOTATION)).transpose()?;
    all.memory_percent = setting_of(MEMORY_PERCENT)?.map(percentage).transpose()?;
    all.cores = setting_of(CORES)?.map(percentage).transpose()?;
    if let Some(setting) = setting_of(CORES_SOFT)? {
        let soft = percentage(setting)?;
        match &all.cores {
            Some(cores) if cores.value <= soft.value => all.cores_soft = Some(soft),
            Some(_) => return Err(soft.setting.refused(format!("at least the {CORES} of the same container"))),
            None => return Err(soft.setting.refused(format!("a container with {CORES}, which is not set"))),
        }
    }
    if let Some(setting) = setting_of(OVERSUBSCRIBE)?
        && switch(&setting)?
    {
        all.spill = Some(Sourced { value: Spill::Allowed, setting });
    }
    if let Some(setting) = setting_of(EVICTABLE)?
        && switch(&setting)?
    {
        all.evictable = Some(setting);
    }
    if let Some(setting) = setting_of(PRIORITY)? {
        request.demote(priority(setting)?);
    }
    read_choice(setting_of, request)?;
    Ok(requests)
}

fn read_choice(setting_of: impl Fn(&'static str) -> Result<Option<Setting>>, request: &mut Request) -> Result<()> {
    let choice = &mut request.choice;
    if let Some(setting) = setting_of(COUNT)? {
        let count = |text: &str| number(text).filter(|&count| count <= vgpu_region::MAX_GPUS as u64).map(|count| count as u32);
        choice.count = Some(parse(setting, count, "a number of GPUs from 1 to 16")?);
    }
    for (key, list) in [(USE_UUID, &mut choice.use_uuid), (NOUSE_UUID, &mut choice.nouse_uuid)] {
        if let Some(setting) = setting_of(key)? {
            let expected = "a comma-separated list of UUIDs such as GPU-01234567-89ab-cdef-0123-456789abcdef";
            *list = Some(parse(setting, uuids, expected)?);
        }
    }
    for (key, list) in [(USE_TYPE, &mut choice.use_type), (NOUSE_TYPE, &mut choice.nouse_type)] {
        if let Some(setting) = setting_of(key)? {
            *list = Some(parse(setting, types, "a comma-separated list of parts of product names such as H200,A100")?);
        }
    }
    Ok(())
}

fn percentage(setting: Setting) -> Result<Sourced<Percent>> {
    match percent(&setting.value).and_then(Percent::new) {
        Some(value) => Ok(Sourced { value, setting }),
        None => Err(setting.refused(percent_advice(&setting.value, PERCENT))),
    }
}

/// Returns the setting of `key` for this container: its own, else the pod's.
fn find(sources: &Sources<'_>, key: &str) -> Result<Option<Setting>> {
    let own = sources.container.map(|name| format!("{key}.{name}"));
    if let Some((key, value)) = own.and_then(|key| sources.annotations.get_key_value(&key)) {
        return Ok(Some(Setting::annotation(key, value)));
    }
    // Node feature discovery also uses `nvidia.com/gpu.…`, so such a key is no sign of a limit that would be missed.
    if sources.container.is_none() && key != COUNT {
        let prefix = format!("{key}.");
        if let Some((name, value)) = sources.annotations.range(prefix.clone()..).next()
            && name.starts_with(&prefix)
        {
            let expected = format!(
                "{key} without a container's name, as no container engine that is believed passes the container's name (the policy's key \
                 engine)"
            );
            return Err(Setting::annotation(name, value).refused(expected));
        }
    }
    Ok(sources.annotations.get(key).map(|value| Setting::annotation(key, value)))
}

fn uuids(text: &str) -> Option<Vec<String>> {
    text.split(',').map(|uuid| devices::uuid(uuid).map(|_| uuid.to_owned())).collect()
}

fn types(text: &str) -> Option<Vec<String>> {
    let is_valid = |part: &str| !part.is_empty() && part.len() <= 96 && !part.chars().any(char::is_control);
    text.split(',').map(str::trim).map(|part| is_valid(part).then(|| part.to_lowercase())).collect()
}
