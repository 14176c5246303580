//! What a container asks for, whoever wrote it down and in whichever dialect.

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;
use vgpu_region::uuid::Uuid;

use crate::devices::{Choice, Visible};
use crate::setting::{Said, Setting};

/// How much memory may spill to the host on top of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// As much as the operator allows.
    Allowed,
    /// Only so much that device and host together hold this factor, in thousandths, of what stays on the device.
    Ratio(u64),
}

/// What one dialect says about one GPU. `None`: nothing said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRequest {
    /// Device memory in bytes.
    pub memory: Option<Said<u64>>,
    /// Device memory in percent of the GPU's, 1-100.
    pub memory_percent: Option<Said<u32>>,
    /// Compute time in percent, 1-100.
    pub cores: Option<Said<u32>>,
    /// Compute time in percent while nobody else wants the GPU, 1-100.
    pub cores_soft: Option<Said<u32>>,
    /// Memory over the limit may spill to the host.
    pub spill: Option<Said<Spill>>,
}

impl GpuRequest {
    /// Whether anything was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is said here, and for the rest what `general` says: the particular wins.
    #[must_use]
    pub fn or(&self, general: &Self) -> Self {
        Self {
            memory: self.memory.clone().or_else(|| general.memory.clone()),
            memory_percent: self.memory_percent.clone().or_else(|| general.memory_percent.clone()),
            cores: self.cores.clone().or_else(|| general.cores.clone()),
            cores_soft: self.cores_soft.clone().or_else(|| general.cores_soft.clone()),
            spill: self.spill.clone().or_else(|| general.spill.clone()),
        }
    }

    /// The stricter of both for each quantity: of two tellers, neither can raise what the other allows.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        Self {
            memory: least(self.memory, other.memory),
            memory_percent: least(self.memory_percent, other.memory_percent),
            cores: least(self.cores, other.cores),
            cores_soft: least(self.cores_soft, other.cores_soft),
            spill: self.spill.or(other.spill),
        }
    }
}

fn least<T: PartialOrd>(one: Option<Said<T>>, other: Option<Said<T>>) -> Option<Said<T>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other.value < one.value { other } else { one }),
        (one, other) => one.or(other),
    }
}

/// What one dialect says about the container's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// For every GPU without a saying of its own.
    pub all: GpuRequest,
    /// For the container's n-th visible GPU.
    pub by_index: BTreeMap<u32, GpuRequest>,
    /// For one GPU.
    pub by_uuid: BTreeMap<[u8; 16], GpuRequest>,
}

impl Claim {
    /// Whether nothing was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.by_index.values().all(GpuRequest::is_empty) && self.by_uuid.values().all(GpuRequest::is_empty)
    }

    /// What is said for the GPU at this place of the container's order, and with this UUID where it is known.
    #[must_use]
    pub fn for_gpu(&self, index: Option<u32>, uuid: Option<Uuid>) -> GpuRequest {
        let nothing = GpuRequest::default();
        let by_index = index.and_then(|index| self.by_index.get(&index)).unwrap_or(&nothing);
        let by_uuid = uuid.and_then(|uuid| self.by_uuid.get(&uuid.0)).unwrap_or(&nothing);
        by_uuid.or(by_index).or(&self.all)
    }
}

/// Everything a container asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// What each dialect says about the GPUs; those that say nothing are left out.
    pub claims: Vec<Claim>,
    /// Which of the GPUs it may have it wants.
    pub choice: Choice,
    /// The GPUs it may have.
    pub visible: Visible,
    /// 0 goes before 1.
    pub priority: Option<Said<u32>>,
    /// A wish not to be limited at all.
    pub opt_out: Option<Setting>,
    /// A wish not to be limited in compute.
    pub cores_opt_out: Option<Setting>,
    /// What the library says on stderr.
    pub log_level: Option<LogLevel>,
    /// Where in the container HAMi's monitor expects its file.
    pub hami_cache: Option<Said<String>>,
    /// Folder in the container for Alnair's profile files.
    pub trace_dir: Option<Said<String>>,
    /// What of the driver the container wants, as it says it.
    pub driver_capabilities: Option<Setting>,
}

impl Request {
    /// Whether the container asks for a limit, a choice of devices or a priority: for that it need not be seen to have a GPU.
    #[must_use]
    pub fn asks(&self) -> bool {
        !self.claims.is_empty() || !self.choice.is_empty() || self.priority.is_some()
    }

    /// Takes note of a priority; of two the humbler stands.
    pub fn demote(&mut self, priority: Said<u32>) {
        if self.priority.as_ref().is_none_or(|known| known.value < priority.value) {
            self.priority = Some(priority);
        }
    }

    /// The strictest of what all dialects say for one GPU.
    #[must_use]
    pub fn for_gpu(&self, index: Option<u32>, uuid: Option<Uuid>) -> GpuRequest {
        self.claims.iter().map(|claim| claim.for_gpu(index, uuid)).fold(GpuRequest::default(), GpuRequest::strictest)
    }
}
