//! Decides a container's limits from its request, the operator's policy and the inventory.

use vgpu_region::MAX_GPUS;

use crate::decide::bounds::Bounds;
use crate::devices::{Candidate, VisibleDevices, candidates};
use crate::error::{Error, Result};
use crate::inventory::Inventory;
use crate::limits::{GpuLimits, Limits, Overcommit, Which};
use crate::policy::{Otherwise, Policy, WithoutRequest};
use crate::request::Request;

mod bounds;

/// Properties of the container other than its request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Container<'a> {
    /// The namespace of its pod.
    pub namespace: Option<&'a str>,
    /// Minor numbers of the NVIDIA device nodes that it has.
    pub minors: &'a [u32],
}

/// Decides the limits. `None`: the container is not limited and not changed.
///
/// # Errors
/// The request is not allowed or cannot be met.
pub fn decide(request: &Request, policy: &Policy, inventory: Option<&Inventory>, container: Container<'_>) -> Result<Option<Limits>> {
    if request.opt_out.is_some() && policy.opt_out.allows(container.namespace) {
        return Ok(None);
    }
    let has_no_request = request.dialects.is_empty();
    if has_no_request && policy.without_request == WithoutRequest::Refuse {
        return Err(Error::Policy(
            "the container has a GPU and no limit: expected a request such as the annotation nvidia.com/gpumem (the policy's key \
             without_request)"
                .to_owned(),
        ));
    }
    let candidates = candidates(&request.visible, container.minors, inventory);
    let candidates = match (&request.choice.count, candidates) {
        // Without an inventory, the first n of all GPUs can still be named. The container toolkit checks that they exist.
        (Some(count), None) if request.visible.devices == VisibleDevices::All && request.choice.is_only_a_count() => {
            Some((0..count.value).map(Candidate::nth).collect())
        }
        (_, candidates) => candidates,
    };
    let names = |gpus: &Option<Vec<Candidate<'_>>>| gpus.as_ref().map(|gpus| gpus.iter().map(|gpu| gpu.name.clone()).collect::<Vec<_>>());
    let candidate_names = names(&candidates);
    let selected = request.choice.select(candidates)?;
    let selected_names = names(&selected);

    let bounds = Bounds { policy, unlimited_cores: request.cores_opt_out.is_some() && policy.opt_out.allows(container.namespace) };
    let mut limits = Limits {
        priority: request.priority.as_ref().map_or(1, |priority| priority.value.max(policy.ceilings.priority)),
        log_level: request.log_level.map(|level| level as u32),
        hami_cache: request.hami_cache.as_ref().map(|path| path.value.clone()),
        trace_dir: request.trace_dir.as_ref().map(|path| path.value.clone()),
        ..Limits::default()
    };
    if !(has_no_request && policy.without_request == WithoutRequest::Pass) {
        limits.gpus = entries(request, selected.as_deref(), &bounds)?;
    }
    let is_narrowed = !request.choice.is_empty() && (selected_names != candidate_names || request.visible.devices == VisibleDevices::All);
    limits.devices = selected_names.filter(|_| request.visible.is_overridden || is_narrowed && request.visible.has_gpus());
    if !limits.is_limited() {
        limits.gpus.clear();
        return Ok(limits.devices.is_some().then_some(limits));
    }
    limits.driver_capabilities = driver_capabilities(request, policy)?;
    Ok(Some(limits))
}

/// Returns the entries of the limits page: one for each known GPU, and one for all others if it limits anything.
fn entries(request: &Request, selected: Option<&[Candidate<'_>]>, bounds: &Bounds<'_>) -> Result<Vec<GpuLimits>> {
    let mut entries = match selected {
        Some(gpus) => {
            let entry = |(index, gpu): (u32, &Candidate<'_>)| {
                let which = gpu.uuid.map_or(Which::Index(index), |uuid| Which::Uuid(gpu.format_uuid(uuid)));
                bounds.apply(which, request.for_gpu(Some(index), gpu.uuid), gpu.memory)
            };
            (0..).zip(gpus).map(entry).collect::<Result<Vec<_>>>()?
        }
        None if !request.visible.order.is_empty() => {
            let ordered = (0..).zip(&request.visible.order);
            let entry = |(index, &uuid)| bounds.apply(Which::Uuid(format!("{uuid}")), request.for_gpu(Some(index), Some(uuid)), None);
            ordered.map(entry).collect::<Result<Vec<_>>>()?
        }
        None => requested_entries(request, bounds)?,
    };
    let general = bounds.apply(Which::All, request.for_gpu(None, None), None);
    let has_uuids = entries.iter().any(|entry| matches!(entry.gpu, Which::Uuid(_)));
    // Where GPUs are known by UUID, any other GPU is unexpected (the image may lie about its GPUs). It gets the strictest limits.
    let rest = if has_uuids { strictest(&entries) } else { general? };
    if rest.is_limited() {
        entries.push(rest);
    }
    if entries.len() > MAX_GPUS {
        let message = format!("limits for {} GPUs: expected at most {} for one container", entries.len() - 1, MAX_GPUS - 1);
        return Err(Error::Policy(message));
    }
    Ok(entries)
}

/// Returns an entry for each index and UUID that the request names, for a container whose GPUs are not known.
fn requested_entries(request: &Request, bounds: &Bounds<'_>) -> Result<Vec<GpuLimits>> {
    let mut indices: Vec<u32> = request.dialects.iter().flat_map(|dialect| dialect.by_index.keys().copied()).collect();
    indices.sort_unstable();
    indices.dedup();
    let mut uuids: Vec<[u8; 16]> = request.dialects.iter().flat_map(|dialect| dialect.by_uuid.keys().copied()).collect();
    uuids.sort_unstable();
    uuids.dedup();
    let by_index = indices.into_iter().map(|index| bounds.apply(Which::Index(index), request.for_gpu(Some(index), None), None));
    let uuids = uuids.into_iter().map(vgpu_region::uuid::Uuid);
    let by_uuid = uuids.map(|uuid| bounds.apply(Which::Uuid(uuid.to_string()), request.for_gpu(None, Some(uuid)), None));
    by_index.chain(by_uuid).collect()
}

/// Returns the smallest limit of each kind among `entries`.
fn strictest(entries: &[GpuLimits]) -> GpuLimits {
    fn min<T: Ord>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
        values.flatten().min()
    }
    let memory = min(entries.iter().map(|entry| entry.memory));
    GpuLimits {
        gpu: Which::All,
        memory,
        memory_percent: min(entries.iter().map(|entry| entry.memory_percent)).filter(|_| memory.is_none()),
        cores: min(entries.iter().map(|entry| entry.cores)),
        cores_soft: min(entries.iter().map(|entry| entry.cores_soft)),
        spill: None,
        overcommit: entries.first().map_or(Overcommit::None, |entry| entry.overcommit),
    }
}

/// Returns the driver capabilities to narrow a limited container to. `None` if it requests only allowed ones.
fn driver_capabilities(request: &Request, policy: &Policy) -> Result<Option<String>> {
    let (Some(requested), true) = (&request.driver_capabilities, request.visible.has_gpus()) else { return Ok(None) };
    let allowed = &policy.driver_capabilities.allow;
    let wanted: Vec<&str> = requested.value.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if wanted.iter().all(|wanted| allowed.iter().any(|allowed| allowed == wanted)) {
        return Ok(None);
    }
    if policy.driver_capabilities.otherwise == Otherwise::Refuse {
        return Err(
            requested.refused(format!("a comma-separated list of {} (the policy's key driver_capabilities.allow)", allowed.join(",")))
        );
    }
    let kept: Vec<&str> =
        allowed.iter().map(String::as_str).filter(|allowed| wanted.contains(&"all") || wanted.contains(allowed)).collect();
    // An empty list would select the toolkit's default.
    Ok(Some(if kept.is_empty() { allowed.join(",") } else { kept.join(",") }))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
