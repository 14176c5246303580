//! The limits that were decided for one container: the content of its limits page and of the host's record.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use vgpu_region::limits::{GpuLimit, LimitsPage, LogLevel, Selector};

use crate::devices;
use crate::quantity::Bytes;

/// The limits of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Limits for each GPU, or for all.
    pub gpus: Vec<GpuLimits>,
    /// 0 is served before 1.
    pub priority: u32,
    /// The library's log level on stderr; see [`LogLevel`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<u32>,
    /// Path in the container of the file that HAMi's monitor reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hami_cache: Option<String>,
    /// Directory in the container for Alnair's profile files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_dir: Option<String>,
    /// Settings of NVIDIA's MPS, if MPS limits GPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<Mps>,
    /// The GPUs that the container is narrowed to, as values of `NVIDIA_VISIBLE_DEVICES`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<String>>,
    /// The driver capabilities that the container is narrowed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_capabilities: Option<String>,
}

/// MPS settings of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mps {
    /// Directory of the daemon's pipes on the host.
    pub pipes: PathBuf,
    /// Value of `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`.
    pub percent: u32,
    /// Value of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`; `None` without a limit in bytes.
    pub memory: Option<String>,
}

impl Mps {
    /// Returns the settings for a daemon with its pipes in this directory. `None` unless every GPU has a limit on GPU time: MPS has one
    /// value for all GPUs.
    ///
    /// Where the limits of GPUs differ, MPS gets the largest. The library, which knows each limit, still enforces the others.
    #[must_use]
    pub fn of(limits: &Limits, pipes: &Path) -> Option<Self> {
        let cores: Option<Vec<u32>> = limits.gpus.iter().map(|gpu| gpu.cores).collect();
        let percent = cores?.into_iter().max()?;
        let bytes: Option<Vec<u64>> = limits.gpus.iter().map(|gpu| gpu.memory.map(Bytes::get)).collect();
        let mebibytes = bytes.and_then(|bytes| bytes.into_iter().max()).map(|bytes| bytes.div_ceil(1 << 20));
        // The entry for all other GPUs counts as a GPU only if it is the only entry.
        let gpus = limits.gpus.iter().filter(|gpu| gpu.gpu != Which::All).count().max(1);
        let memory = mebibytes.map(|mebibytes| (0..gpus).map(|gpu| format!("{gpu}={mebibytes}M")).collect::<Vec<_>>().join(","));
        Some(Self { pipes: pipes.to_owned(), percent, memory })
    }
}

/// The GPUs that an entry applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    /// All GPUs without an entry of their own.
    All,
    /// The GPU or MIG device with this UUID, `GPU-…` or `MIG-…`.
    Uuid(String),
    /// The container's n-th GPU.
    Index(u32),
}

/// The limits on one GPU. `None` fields are not limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLimits {
    /// The GPU.
    pub gpu: Which,
    /// Device memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Device memory in percent, where the host side does not know the GPU's total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<u32>,
    /// GPU time in percent, 1-99.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// GPU time in percent while the GPU is otherwise idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_soft: Option<u32>,
    /// Memory in bytes that may spill to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<u64>,
    /// What the operator's overcommitment of memory means for the container.
    #[serde(default, skip_serializing_if = "Overcommit::is_none")]
    pub overcommit: Overcommit,
}

/// Part of a container in a GPU whose memory is overcommitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overcommit {
    /// The GPU's memory is not overcommitted.
    #[default]
    None,
    /// The container may wait for room, and its memory stays.
    Resident,
    /// Its memory may be moved to the host while others need the GPU's.
    Evictable,
}

impl Overcommit {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl GpuLimits {
    /// Returns an entry without limits.
    #[must_use]
    pub fn none(gpu: Which) -> Self {
        Self { gpu, memory: None, memory_percent: None, cores: None, cores_soft: None, spill: None, overcommit: Overcommit::None }
    }

    /// Returns whether memory or GPU time is limited.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.memory.is_some() || self.memory_percent.is_some() || self.cores.is_some()
    }

    fn entry(&self) -> Option<GpuLimit> {
        let entry = GpuLimit::new(match &self.gpu {
            Which::All => Selector::All,
            Which::Uuid(uuid) => Selector::Uuid(devices::uuid(uuid)?),
            Which::Index(index) => Selector::Index(*index),
        });
        entry.memory.store(self.memory.map_or(0, Bytes::get), Relaxed);
        entry.memory_percent.store(self.memory_percent.unwrap_or(0), Relaxed);
        entry.cores.store(self.cores.unwrap_or(0), Relaxed);
        entry.cores_soft.store(self.cores_soft.unwrap_or(0), Relaxed);
        entry.spill.store(self.spill.unwrap_or(0), Relaxed);
        let overcommit = match self.overcommit {
            Overcommit::None => 0,
            Overcommit::Resident => GpuLimit::OVERCOMMITTED,
            Overcommit::Evictable => GpuLimit::EVICTABLE,
        };
        entry.overcommit.store(overcommit, Relaxed);
        Some(entry)
    }
}

impl Limits {
    /// Returns whether any GPU is limited.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.gpus.iter().any(GpuLimits::is_limited)
    }

    /// Returns the container's limits page. `None` if something does not fit into it, which [`crate::decide()`] rules out.
    #[must_use]
    pub fn page(&self) -> Option<LimitsPage> {
        let entries: Option<Vec<GpuLimit>> = self.gpus.iter().map(GpuLimits::entry).collect();
        let entries = entries.filter(|entries| entries.len() <= vgpu_region::MAX_GPUS)?;
        let mut page = LimitsPage::new(entries).with_priority(self.priority);
        if self.mps.is_some() {
            page = page.with_mps();
        }
        if let Some(level) = self.log_level {
            page = page.with_log_level(log_level(level));
        }
        if let Some(path) = &self.hami_cache {
            page = page.with_hami_cache(path)?;
        }
        if let Some(dir) = &self.trace_dir {
            page = page.with_trace_dir(dir)?;
        }
        Some(page)
    }
}

fn log_level(level: u32) -> LogLevel {
    let levels = [LogLevel::Off, LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug];
    levels.into_iter().find(|known| *known as u32 == level).unwrap_or(LogLevel::Warn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mps_gets_the_largest_limit() {
        let gpu = |which, cores, memory: Option<u64>| GpuLimits { cores, memory: memory.and_then(Bytes::new), ..GpuLimits::none(which) };
        let pipes = Path::new("/run/mps");
        let of = |gpus| Mps::of(&Limits { gpus, ..Limits::default() }, pipes);
        let one = of(vec![gpu(Which::All, Some(30), Some(1 << 30))]).unwrap();
        assert_eq!((one.percent, one.memory.as_deref()), (30, Some("0=1024M")));
        let two = of(vec![
            gpu(Which::Index(0), Some(30), Some(1 << 30)),
            gpu(Which::Index(1), Some(50), Some((1 << 29) + 1)),
            gpu(Which::All, Some(30), Some(1 << 29)),
        ]);
        assert_eq!(two.map(|mps| (mps.percent, mps.memory)), Some((50, Some("0=1024M,1=1024M".to_owned()))));
        assert_eq!(of(vec![gpu(Which::All, Some(30), None)]).unwrap().memory, None);
        assert_eq!(of(vec![gpu(Which::Index(0), Some(30), None), gpu(Which::All, None, Some(1))]), None, "one GPU has no time limit");
        let page = Limits { gpus: vec![gpu(Which::All, Some(30), None)], mps: Some(one), ..Limits::default() }.page().unwrap();
        assert!(page.is_mps() && !page.is_traced());
    }

    #[test]
    fn the_page_has_the_decided_limits() {
        let limits = Limits {
            gpus: vec![
                GpuLimits { memory: Bytes::new(1 << 30), cores: Some(30), ..GpuLimits::none(Which::Index(1)) },
                GpuLimits { memory_percent: Some(50), cores_soft: Some(60), spill: Some(7), ..GpuLimits::none(Which::All) },
            ],
            priority: 0,
            log_level: Some(LogLevel::Debug as u32),
            hami_cache: Some("/tmp/cudevshr.cache".to_owned()),
            ..Limits::default()
        };
        let page = limits.page().unwrap();
        assert_eq!((page.priority(), page.log_level(), page.hami_cache()), (0, LogLevel::Debug, &b"/tmp/cudevshr.cache"[..]));
        let found: Vec<_> =
            page.gpus().map(|gpu| (gpu.selector(), gpu.memory_for(1000), gpu.cores_limit(), gpu.spill.load(Relaxed))).collect();
        assert_eq!(found, [(Some(Selector::Index(1)), Some(1 << 30), Some(30), 0), (Some(Selector::All), Some(500), None, 7)]);
    }

    #[test]
    fn limits_that_do_not_fit_have_no_page() {
        let many = Limits { gpus: vec![GpuLimits::none(Which::All); vgpu_region::MAX_GPUS + 1], ..Limits::default() };
        assert!(many.page().is_none());
        let long = Limits { trace_dir: Some("/".repeat(256)), ..Limits::default() };
        assert!(long.page().is_none());
        let bad = Limits { gpus: vec![GpuLimits::none(Which::Uuid("GPU-1".to_owned()))], ..Limits::default() };
        assert!(bad.page().is_none());
    }
}
