//! The operator's defaults and ceilings, applied to the request for one GPU.

use crate::error::{Error, Result};
use crate::limits::{GpuLimits, Overcommit, Which};
use crate::policy::{OverCeiling, Policy};
use crate::quantity::{Bytes, Percent, part};
use crate::request::{GpuRequest, Spill};
use crate::setting::{Setting, Sourced};

/// The operator's defaults and ceilings for one container.
pub(super) struct Bounds<'a> {
    pub(super) policy: &'a Policy,
    /// Whether the container has opted out of the limit on GPU time.
    pub(super) unlimited_cores: bool,
}

impl Bounds<'_> {
    /// Decides the limits on one GPU with `total` bytes of memory, where known.
    pub(super) fn apply(&self, gpu: Which, request: GpuRequest, total: Option<u64>) -> Result<GpuLimits> {
        let mut limits = GpuLimits::none(gpu);
        let memory = self.memory(&request, total.and_then(Bytes::new))?;
        limits.memory = memory.bytes;
        limits.memory_percent = memory.percent.map(Percent::get);

        let (defaults, ceilings) = (&self.policy.defaults, &self.policy.ceilings);
        let cores = (!self.unlimited_cores).then_some(request.cores).flatten();
        let wanted = cores.as_ref().map(|cores| cores.value).or(defaults.cores.filter(|_| !self.unlimited_cores));
        let hard = self.under_ceiling(wanted, ceilings.cores, cores.as_ref().map(|cores| &cores.setting))?;
        let hard = hard.filter(|&cores| cores < Percent::MAX);
        limits.cores = hard.map(Percent::get);
        if let Some(hard) = hard
            && let Some(wanted) = request.cores_soft.as_ref().map(|soft| soft.value).or(defaults.cores_soft)
        {
            let setting = request.cores_soft.as_ref().map(|soft| &soft.setting);
            let soft = self.under_ceiling(Some(wanted), ceilings.cores_soft, setting)?;
            limits.cores_soft = soft.filter(|&soft| soft > hard).map(Percent::get);
        }
        if let Some(spill) = &request.spill {
            self.spill(spill, &mut limits)?;
        }
        limits.overcommit = self.overcommit(request.evictable.as_ref(), &limits)?;
        Ok(limits)
    }

    /// Decides what the operator's overcommitment of memory means for a container with these limits.
    fn overcommit(&self, evictable: Option<&Setting>, limits: &GpuLimits) -> Result<Overcommit> {
        match (self.policy.overcommit.enabled, evictable) {
            (true, Some(setting)) if limits.memory.is_none() && limits.memory_percent.is_none() => {
                Err(setting.refused("a container with a limit on device memory (nvidia.com/gpumem)"))
            }
            (true, Some(_)) => Ok(Overcommit::Evictable),
            (true, None) => Ok(Overcommit::Resident),
            (false, None) => Ok(Overcommit::None),
            (false, Some(setting)) => Err(setting.refused("a node that overcommits memory (the policy's key overcommit.enabled)")),
        }
    }

    fn memory(&self, request: &GpuRequest, total: Option<Bytes>) -> Result<MemoryAmount> {
        let (defaults, ceilings) = (&self.policy.defaults, &self.policy.ceilings);
        let requested = MemoryAmount {
            bytes: request.memory.as_ref().map(|memory| memory.value),
            percent: request.memory_percent.as_ref().map(|memory| memory.value),
        };
        let setting = request.memory.as_ref().map(|memory| &memory.setting);
        let setting = setting.or(request.memory_percent.as_ref().map(|memory| &memory.setting));
        let default = MemoryAmount { bytes: defaults.memory, percent: defaults.memory_percent };
        let wanted = if requested.is_none() { default } else { requested };
        let ceiling = MemoryAmount { bytes: ceilings.memory, percent: ceilings.memory_percent };
        let (Some(wanted), Some(ceiling)) = (wanted.in_one_unit(total), ceiling.in_one_unit(total)) else {
            return Err(incomparable(setting));
        };
        match wanted.exceeds(ceiling) {
            None => Err(incomparable(setting)),
            Some(Exceeded::No) => Ok(wanted),
            Some(Exceeded::Unset) => Ok(ceiling),
            Some(Exceeded::By(ceiling_shown)) => self.check_clamp(setting, ceiling_shown).map(|()| ceiling),
        }
    }

    /// Refuses a request over a ceiling, unless the policy is to clamp. Defaults, which have no setting, are always clamped.
    fn check_clamp(&self, setting: Option<&Setting>, ceiling: String) -> Result<()> {
        match (self.policy.over_ceiling, setting) {
            (OverCeiling::Refuse, Some(setting)) => Err(setting.refused(format!("at most {ceiling} (the operator's ceiling)"))),
            _ => Ok(()),
        }
    }

    fn under_ceiling(&self, wanted: Option<Percent>, ceiling: Option<Percent>, setting: Option<&Setting>) -> Result<Option<Percent>> {
        match (wanted, ceiling) {
            (Some(wanted), Some(ceiling)) if wanted > ceiling => {
                self.check_clamp(setting, ceiling.to_string())?;
                Ok(Some(ceiling))
            }
            (wanted, ceiling) => Ok(wanted.or(ceiling)),
        }
    }

    /// Splits the memory limit into device memory and memory that may spill to the host.
    fn spill(&self, requested: &Sourced<Spill>, limits: &mut GpuLimits) -> Result<()> {
        let percent = self.policy.ceilings.oversubscribe_percent;
        let Some(memory) = limits.memory else {
            if limits.memory_percent.is_some() {
                let expected = "oversubscription of memory given in bytes (there is no inventory of this machine's GPUs)";
                return Err(requested.setting.refused(expected));
            }
            return Ok(());
        };
        let ceiling = |device: Bytes| part(device.get(), percent.into(), 100);
        let (device, spill) = match requested.value {
            Spill::Allowed => (memory, ceiling(memory)),
            Spill::Ratio(thousandths) => {
                let device = memory.scaled(1000, thousandths);
                (device, memory.get() - device.get())
            }
        };
        if percent == 0 || spill > ceiling(device) {
            self.check_clamp(Some(&requested.setting), format!("{percent} percent of the device memory spilled to the host"))?;
        }
        (limits.memory, limits.spill) = (Some(device), Some(spill.min(ceiling(device))).filter(|&spill| spill > 0));
        Ok(())
    }
}

/// An amount of device memory in bytes, in percent, in both (the smaller one counts), or in neither.
#[derive(Clone, Copy)]
struct MemoryAmount {
    bytes: Option<Bytes>,
    percent: Option<Percent>,
}

impl MemoryAmount {
    fn is_none(self) -> bool {
        self.bytes.is_none() && self.percent.is_none()
    }

    /// Converts the amount to one unit: bytes where the GPU's total is known. `None` if both are given and it is not.
    fn in_one_unit(self, total: Option<Bytes>) -> Option<Self> {
        match (self, total) {
            (Self { percent: None, .. }, _) | (Self { bytes: None, .. }, None) => Some(self),
            (Self { bytes, percent: Some(percent) }, Some(total)) => {
                let part = percent.of(total);
                Some(Self { bytes: Some(bytes.map_or(part, |bytes| bytes.min(part))), percent: None })
            }
            (Self { bytes: Some(_), percent: Some(_) }, None) => None,
        }
    }

    /// Compares the amount with a ceiling. `None` if they are in different units.
    fn exceeds(self, ceiling: Self) -> Option<Exceeded> {
        match (self, ceiling) {
            (_, ceiling) if ceiling.is_none() => Some(Exceeded::No),
            (wanted, _) if wanted.is_none() => Some(Exceeded::Unset),
            (Self { bytes: Some(wanted), .. }, Self { bytes: Some(max), .. }) => Some(Exceeded::of(wanted > max, &max)),
            (Self { percent: Some(wanted), .. }, Self { percent: Some(max), .. }) => Some(Exceeded::of(wanted > max, &max)),
            _ => None,
        }
    }
}

/// How an amount compares with a ceiling.
enum Exceeded {
    /// The amount is within the ceiling, or there is none.
    No,
    /// There is no amount.
    Unset,
    /// The amount exceeds this ceiling.
    By(String),
}

impl Exceeded {
    fn of(is_exceeded: bool, ceiling: &impl ToString) -> Self {
        if is_exceeded { Self::By(ceiling.to_string()) } else { Self::No }
    }
}

/// Returns the error for memory in bytes and in percent, of which neither can be converted. `setting` is the container's, if it has one.
fn incomparable(setting: Option<&Setting>) -> Error {
    const EXPECTED: &str = "memory in the same unit, bytes or percent, as the policy and other requests, or an inventory of this machine's GPUs (vgpu inventory)";
    match setting {
        Some(setting) => setting.refused(EXPECTED),
        None => Error::Policy(format!("memory of [defaults] and [ceilings]: expected {EXPECTED}")),
    }
}
