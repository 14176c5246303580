//! From what is asked and what is allowed to what is decided.

use vgpu_region::MAX_GPUS;

use crate::devices::{Candidate, Given, candidates};
use crate::error::{Error, Result};
use crate::inventory::Inventory;
use crate::limits::{GpuLimits, Limits, Which};
use crate::policy::{Otherwise, OverCeiling, Policy, WithoutRequest};
use crate::quantity::MIB;
use crate::request::{GpuRequest, Request, Spill};
use crate::setting::{Said, Setting};

/// What is known of the container beside what it asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Container<'a> {
    /// The namespace of its pod.
    pub namespace: Option<&'a str>,
    /// The numbers of NVIDIA's device nodes that it is given directly.
    pub minors: &'a [u32],
}

/// Decides. `None`: the container is not limited, and nothing about it is changed.
///
/// # Errors
/// What is asked for is not allowed, or cannot be given.
pub fn decide(request: &Request, policy: &Policy, inventory: Option<&Inventory>, container: Container<'_>) -> Result<Option<Limits>> {
    if request.opt_out.is_some() && policy.opt_out.allows(container.namespace) {
        return Ok(None);
    }
    let unasked = request.claims.is_empty();
    if unasked && policy.without_request == WithoutRequest::Refuse {
        return Err(Error::Policy(
            "the container has a GPU and asks for no limit: the policy (without_request) accepts only containers that ask for \
             one, such as by the annotation nvidia.com/gpumem"
                .to_owned(),
        ));
    }
    let candidates = candidates(&request.visible, container.minors, inventory);
    let candidates = match (&request.choice.count, candidates) {
        // Without an inventory the n first of all GPUs can still be named; the container toolkit checks that they exist.
        (Some(count), None) if request.visible.given == Given::All && request.choice.is_only_a_count() => {
            Some((0..count.value).map(Candidate::nth).collect())
        }
        (_, candidates) => candidates,
    };
    let before = candidates.as_ref().map(|all| all.iter().map(|gpu| gpu.name.clone()).collect::<Vec<_>>());
    let chosen = request.choice.pick(candidates)?;
    let names = chosen.as_ref().map(|all| all.iter().map(|gpu| gpu.name.clone()).collect::<Vec<_>>());

    let bounds = Bounds { policy, unlimited_cores: request.cores_opt_out.is_some() && policy.opt_out.allows(container.namespace) };
    let mut limits = Limits {
        priority: request.priority.as_ref().map_or(1, |said| said.value.max(policy.ceilings.priority)),
        log_level: request.log_level.map(|level| level as u32),
        hami_cache: request.hami_cache.as_ref().map(|said| said.value.clone()),
        trace_dir: request.trace_dir.as_ref().map(|said| said.value.clone()),
        ..Limits::default()
    };
    if !(unasked && policy.without_request == WithoutRequest::Pass) {
        limits.gpus = entries(request, chosen.as_deref(), &bounds)?;
    }
    let chosen = !request.choice.is_empty() && (names != before || request.visible.given == Given::All);
    limits.devices = names.filter(|_| request.visible.replaced || chosen && request.visible.gives());
    if !limits.limit_anything() {
        limits.gpus.clear();
        return Ok(limits.devices.is_some().then_some(limits));
    }
    limits.driver_capabilities = driver_capabilities(request, policy)?;
    Ok(Some(limits))
}

/// The entries for the limits page.
fn entries(request: &Request, chosen: Option<&[Candidate<'_>]>, bounds: &Bounds<'_>) -> Result<Vec<GpuLimits>> {
    let mut entries = Vec::new();
    match chosen {
        Some(gpus) => {
            for (index, gpu) in (0..).zip(gpus) {
                let which = gpu.uuid.map_or(Which::Index(index), |uuid| Which::Uuid(gpu.printed(uuid)));
                entries.push(bounds.limit(which, request.for_gpu(Some(index), gpu.uuid), gpu.memory)?);
            }
        }
        None if !request.visible.order.is_empty() => {
            for (index, &uuid) in (0..).zip(&request.visible.order) {
                entries.push(bounds.limit(Which::Uuid(uuid.to_string()), request.for_gpu(Some(index), Some(uuid)), None)?);
            }
        }
        None => {
            let mut indices: Vec<u32> = request.claims.iter().flat_map(|claim| claim.by_index.keys().copied()).collect();
            indices.sort_unstable();
            indices.dedup();
            for index in indices {
                entries.push(bounds.limit(Which::Index(index), request.for_gpu(Some(index), None), None)?);
            }
            let mut uuids: Vec<[u8; 16]> = request.claims.iter().flat_map(|claim| claim.by_uuid.keys().copied()).collect();
            uuids.sort_unstable();
            uuids.dedup();
            for uuid in uuids.into_iter().map(vgpu_region::uuid::Uuid) {
                entries.push(bounds.limit(Which::Uuid(uuid.to_string()), request.for_gpu(None, Some(uuid)), None)?);
            }
        }
    }
    let general = bounds.limit(Which::All, request.for_gpu(None, None), None);
    let by_uuid = entries.iter().any(|entry| matches!(entry.gpu, Which::Uuid(_)));
    // Where GPUs are known by their UUIDs, a GPU that is none of them was not meant to be here (or an image lied about which are):
    // it gets the strictest of the limits, never none.
    let rest = if by_uuid { strictest(&entries) } else { general? };
    if rest.limits() {
        entries.push(rest);
    }
    if entries.len() > MAX_GPUS {
        return Err(Error::Policy(format!(
            "limits for {} GPUs: accepted are at most {} for one container",
            entries.len() - 1,
            MAX_GPUS - 1
        )));
    }
    Ok(entries)
}

fn strictest(entries: &[GpuLimits]) -> GpuLimits {
    fn least<T: Ord>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
        values.flatten().min()
    }
    let memory = least(entries.iter().map(|entry| entry.memory));
    GpuLimits {
        gpu: Which::All,
        memory,
        memory_percent: least(entries.iter().map(|entry| entry.memory_percent)).filter(|_| memory.is_none()),
        cores: least(entries.iter().map(|entry| entry.cores)),
        cores_soft: least(entries.iter().map(|entry| entry.cores_soft)),
        spill: None,
    }
}

/// The operator's bounds.
struct Bounds<'a> {
    policy: &'a Policy,
    unlimited_cores: bool,
}

impl Bounds<'_> {
    /// What is decided for one GPU of `total` bytes.
    fn limit(&self, gpu: Which, asked: GpuRequest, total: Option<u64>) -> Result<GpuLimits> {
        let (defaults, ceilings) = (&self.policy.defaults, &self.policy.ceilings);
        let mut limits = GpuLimits::none(gpu);
        let asked_memory =
            Amount { bytes: asked.memory.as_ref().map(|said| said.value), percent: asked.memory_percent.as_ref().map(|said| said.value) };
        let by = asked.memory.as_ref().map(|said| &said.by).or(asked.memory_percent.as_ref().map(|said| &said.by));
        let wanted =
            if asked_memory.is_none() { Amount { bytes: defaults.memory, percent: defaults.memory_percent } } else { asked_memory };
        let ceiling = Amount { bytes: ceilings.memory, percent: ceilings.memory_percent }.of(total)?;
        let memory = wanted.of(total)?.under(ceiling, |most| self.over(by, most))?;
        (limits.memory, limits.memory_percent) = (memory.bytes, memory.percent);

        let cores = (!self.unlimited_cores).then_some(asked.cores).flatten();
        let wanted = cores.as_ref().map(|said| said.value).or(defaults.cores.filter(|_| !self.unlimited_cores));
        let by = cores.as_ref().map(|said| &said.by);
        limits.cores = self.percent(wanted, ceilings.cores, by)?.filter(|&cores| cores < 100);
        if let Some(hard) = limits.cores {
            let soft = asked.cores_soft.as_ref().map(|said| said.value).or(defaults.cores_soft);
            let by = asked.cores_soft.as_ref().map(|said| &said.by);
            let soft = soft.map(|soft| self.percent(Some(soft), ceilings.cores_soft, by)).transpose()?.flatten();
            limits.cores_soft = soft.filter(|&soft| soft > hard);
        }
        if let Some(spill) = &asked.spill {
            self.spill(spill, &mut limits)?;
        }
        Ok(limits)
    }

    /// Says no to what is over a ceiling, unless the operator would rather cut it.
    fn over(&self, by: Option<&Setting>, most: String) -> Result<()> {
        match (self.policy.over_ceiling, by) {
            (OverCeiling::Refuse, Some(by)) => Err(by.refused(format!("at most {most} (the operator's ceiling)"))),
            _ => Ok(()),
        }
    }

    fn percent(&self, wanted: Option<u32>, ceiling: Option<u32>, by: Option<&Setting>) -> Result<Option<u32>> {
        match (wanted, ceiling) {
            (Some(wanted), Some(most)) if wanted > most => {
                self.over(by, format!("{most} percent"))?;
                Ok(Some(most))
            }
            (wanted, ceiling) => Ok(wanted.or(ceiling)),
        }
    }

    fn spill(&self, asked: &Said<Spill>, limits: &mut GpuLimits) -> Result<()> {
        let percent = u128::from(self.policy.ceilings.oversubscribe_percent);
        let Some(memory) = limits.memory else {
            if limits.memory_percent.is_some() {
                return Err(asked.by.refused("oversubscription of memory given in bytes (there is no inventory of this machine's GPUs)"));
            }
            return Ok(());
        };
        let most = |device: u64| u64::try_from(u128::from(device) * percent / 100).unwrap_or(u64::MAX);
        let (device, spill) = match asked.value {
            Spill::Allowed => (memory, most(memory)),
            Spill::Ratio(thousandths) => {
                let device = (u128::from(memory) * 1000 / u128::from(thousandths)) as u64;
                (device, memory - device)
            }
        };
        if percent == 0 || spill > most(device) {
            self.over(Some(&asked.by), format!("{percent} percent of the device memory spilled to the host"))?;
        }
        (limits.memory, limits.spill) = (Some(device), Some(spill.min(most(device))).filter(|&spill| spill > 0));
        Ok(())
    }
}

/// An amount of device memory: in bytes, in percent, in both (the lesser counts), or not at all.
#[derive(Clone, Copy)]
struct Amount {
    bytes: Option<u64>,
    percent: Option<u32>,
}

impl Amount {
    fn is_none(self) -> bool {
        self.bytes.is_none() && self.percent.is_none()
    }

    /// In one unit: bytes where the GPU's total is known.
    fn of(self, total: Option<u64>) -> Result<Self> {
        match (self, total) {
            (Self { percent: None, .. }, _) | (Self { bytes: None, .. }, None) => Ok(self),
            (Self { bytes, percent: Some(percent) }, Some(total)) => {
                let part = (u128::from(total) * u128::from(percent) / 100) as u64;
                Ok(Self { bytes: Some(bytes.map_or(part, |bytes| bytes.min(part))), percent: None })
            }
            (Self { bytes: Some(_), percent: Some(_) }, None) => Err(incomparable()),
        }
    }

    /// At most `ceiling`; `over` may refuse.
    fn under(self, ceiling: Self, over: impl Fn(String) -> Result<()>) -> Result<Self> {
        let too_much = match (self, ceiling) {
            (_, ceiling) if ceiling.is_none() => return Ok(self),
            (wanted, _) if wanted.is_none() => return Ok(ceiling),
            (Self { bytes: Some(wanted), .. }, Self { bytes: Some(most), .. }) if wanted > most => format!("{} MiB", most / MIB),
            (Self { percent: Some(wanted), .. }, Self { percent: Some(most), .. }) if wanted > most => format!("{most} percent"),
            (Self { bytes: Some(_), .. }, Self { bytes: Some(_), .. }) | (Self { percent: Some(_), .. }, Self { percent: Some(_), .. }) => {
                return Ok(self);
            }
            _ => return Err(incomparable()),
        };
        over(too_much)?;
        Ok(ceiling)
    }
}

fn incomparable() -> Error {
    Error::Policy(
        "memory is given both in bytes and in percent, by the container and by the policy's ceilings or in two dialects: accepted \
         is one of the two, as long as the GPU's memory is not known (there is no inventory of this machine's GPUs)"
            .to_owned(),
    )
}

/// The driver capabilities to narrow a limited container to; `None` if it asks for nothing beyond what is allowed.
fn driver_capabilities(request: &Request, policy: &Policy) -> Result<Option<String>> {
    let (Some(asked), true) = (&request.driver_capabilities, request.visible.gives()) else { return Ok(None) };
    let allowed = &policy.driver_capabilities.allow;
    let wanted: Vec<&str> = asked.value.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if wanted.iter().all(|wanted| allowed.iter().any(|allowed| allowed == wanted)) {
        return Ok(None);
    }
    if policy.driver_capabilities.otherwise == Otherwise::Refuse {
        return Err(asked.refused(format!("a comma list of {} (the policy's driver_capabilities)", allowed.join(","))));
    }
    let kept: Vec<&str> =
        allowed.iter().map(String::as_str).filter(|allowed| wanted.contains(&"all") || wanted.contains(allowed)).collect();
    // An empty list would mean the toolkit's own default.
    Ok(Some(if kept.is_empty() { allowed.join(",") } else { kept.join(",") }))
}

#[cfg(test)]
mod tests;
