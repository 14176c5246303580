//! What a container requests, in one model for all dialects.

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;
use vgpu_region::uuid::Uuid;

use crate::devices::{Choice, Visible};
use crate::quantity::{Bytes, Percent};
use crate::setting::{Setting, Sourced};

/// The amount of memory that may spill to the host beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// As much as the operator allows.
    Allowed,
    /// Up to a total of device and host memory of this factor, in thousandths, times the device memory.
    Ratio(u64),
}

/// The request of one dialect for one GPU. `None` fields are not requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRequest {
    /// Device memory.
    pub memory: Option<Sourced<Bytes>>,
    /// Device memory in percent of the GPU's.
    pub memory_percent: Option<Sourced<Percent>>,
    /// GPU time in percent.
    pub cores: Option<Sourced<Percent>>,
    /// GPU time in percent while the GPU is otherwise idle.
    pub cores_soft: Option<Sourced<Percent>>,
    /// Spilling of memory beyond the limit to the host.
    pub spill: Option<Sourced<Spill>>,
    /// The setting that lets the container's memory move to the host while others need the GPU's.
    pub evictable: Option<Setting>,
}

impl GpuRequest {
    /// Returns whether nothing is requested.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns this request with the fields that it lacks taken from `general`.
    #[must_use]
    pub fn or(&self, general: &Self) -> Self {
        Self {
            memory: self.memory.clone().or_else(|| general.memory.clone()),
            memory_percent: self.memory_percent.clone().or_else(|| general.memory_percent.clone()),
            cores: self.cores.clone().or_else(|| general.cores.clone()),
            cores_soft: self.cores_soft.clone().or_else(|| general.cores_soft.clone()),
            spill: self.spill.clone().or_else(|| general.spill.clone()),
            evictable: self.evictable.clone().or_else(|| general.evictable.clone()),
        }
    }

    /// Returns the stricter value of each quantity: no dialect can raise what another one allows.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        Self {
            memory: min(self.memory, other.memory),
            memory_percent: min(self.memory_percent, other.memory_percent),
            cores: min(self.cores, other.cores),
            cores_soft: min(self.cores_soft, other.cores_soft),
            spill: self.spill.or(other.spill),
            evictable: self.evictable.or(other.evictable),
        }
    }
}

fn min<T: PartialOrd>(one: Option<Sourced<T>>, other: Option<Sourced<T>>) -> Option<Sourced<T>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other.value < one.value { other } else { one }),
        (one, other) => one.or(other),
    }
}

/// The requests of one dialect for the container's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRequests {
    /// For every GPU without a more specific request.
    pub all: GpuRequest,
    /// For the container's n-th visible GPU.
    pub by_index: BTreeMap<u32, GpuRequest>,
    /// For one GPU.
    pub by_uuid: BTreeMap<[u8; 16], GpuRequest>,
}

impl GpuRequests {
    /// Returns whether nothing is requested.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.by_index.values().all(GpuRequest::is_empty) && self.by_uuid.values().all(GpuRequest::is_empty)
    }

    /// Returns the request for the GPU at this index of the container's order, and with this UUID where known.
    #[must_use]
    pub fn for_gpu(&self, index: Option<u32>, uuid: Option<Uuid>) -> GpuRequest {
        let empty = GpuRequest::default();
        let by_index = index.and_then(|index| self.by_index.get(&index)).unwrap_or(&empty);
        let by_uuid = uuid.and_then(|uuid| self.by_uuid.get(&uuid.0)).unwrap_or(&empty);
        by_uuid.or(by_index).or(&self.all)
    }
}

/// The request of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The non-empty requests for GPUs, one for each dialect.
    pub dialects: Vec<GpuRequests>,
    /// The selection among the visible GPUs.
    pub choice: Choice,
    /// The GPUs that are visible to the container.
    pub visible: Visible,
    /// 0 is served before 1.
    pub priority: Option<Sourced<u32>>,
    /// The setting that asks for no limits at all.
    pub opt_out: Option<Setting>,
    /// The setting that asks for no limit on GPU time.
    pub cores_opt_out: Option<Setting>,
    /// The settings of more than 100 percent of GPU time, which limit nothing.
    pub above_all_time: Vec<Setting>,
    /// The library's log level on stderr.
    pub log_level: Option<LogLevel>,
    /// Path in the container of the file that HAMi's monitor reads.
    pub hami_cache: Option<Sourced<String>>,
    /// Directory in the container for Alnair's profile files.
    pub trace_dir: Option<Sourced<String>>,
    /// The requested driver capabilities, as written.
    pub driver_capabilities: Option<Setting>,
}

impl Request {
    /// Returns whether the container requests a limit, a choice of devices or a priority. Such a container counts as one with a GPU.
    #[must_use]
    pub fn is_explicit(&self) -> bool {
        !self.dialects.is_empty() || !self.choice.is_empty() || self.priority.is_some()
    }

    /// Records a priority. The lower priority (the larger number) wins.
    pub fn demote(&mut self, priority: Sourced<u32>) {
        if self.priority.as_ref().is_none_or(|known| known.value < priority.value) {
            self.priority = Some(priority);
        }
    }

    /// Returns the strictest request of all dialects for one GPU.
    #[must_use]
    pub fn for_gpu(&self, index: Option<u32>, uuid: Option<Uuid>) -> GpuRequest {
        self.dialects.iter().map(|dialect| dialect.for_gpu(index, uuid)).fold(GpuRequest::default(), GpuRequest::strictest)
    }
}
