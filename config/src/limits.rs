//! What was decided for one container: what goes into the page that its processes read, and into the host's record of it.

use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use vgpu_region::limits::{GpuLimit, LimitsPage, LogLevel, Selector};

/// The limits of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// For each GPU, or for all.
    pub gpus: Vec<GpuLimits>,
    /// 0 goes before 1.
    pub priority: u32,
    /// What the library says on stderr; see [`LogLevel`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<u32>,
    /// Where in the container HAMi's monitor expects its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hami_cache: Option<String>,
    /// Folder in the container for Alnair's profile files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_dir: Option<String>,
    /// The GPUs that the container is narrowed to, as `NVIDIA_VISIBLE_DEVICES` names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<String>>,
    /// The parts of the driver that the container is narrowed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_capabilities: Option<String>,
}

/// Which GPUs an entry is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    /// All that have no entry of their own.
    All,
    /// The one with this UUID, `GPU-…` or `MIG-…`.
    Uuid(String),
    /// The container's n-th.
    Index(u32),
}

/// The limits on one GPU. `None`: no such limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLimits {
    /// Which GPU.
    pub gpu: Which,
    /// Device memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Device memory in percent, where the GPU's total is not known on the host side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<u32>,
    /// Compute time in percent, 1-99.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Compute time in percent while nobody else wants the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_soft: Option<u32>,
    /// Memory in bytes that may spill to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<u64>,
}

impl GpuLimits {
    /// An entry without limits.
    #[must_use]
    pub fn none(gpu: Which) -> Self {
        Self { gpu, memory: None, memory_percent: None, cores: None, cores_soft: None, spill: None }
    }

    /// Whether there is any limit in it.
    #[must_use]
    pub fn limits(&self) -> bool {
        self.memory.is_some() || self.memory_percent.is_some() || self.cores.is_some()
    }

    fn entry(&self) -> Option<GpuLimit> {
        let entry = GpuLimit::new(match &self.gpu {
            Which::All => Selector::All,
            Which::Uuid(uuid) => Selector::Uuid(crate::devices::uuid(uuid)?),
            Which::Index(index) => Selector::Index(*index),
        });
        entry.memory.store(self.memory.unwrap_or(0), Relaxed);
        entry.memory_percent.store(self.memory_percent.unwrap_or(0), Relaxed);
        entry.cores.store(self.cores.unwrap_or(0), Relaxed);
        entry.cores_soft.store(self.cores_soft.unwrap_or(0), Relaxed);
        entry.spill.store(self.spill.unwrap_or(0), Relaxed);
        Some(entry)
    }
}

impl Limits {
    /// Whether any GPU is limited.
    #[must_use]
    pub fn limit_anything(&self) -> bool {
        self.gpus.iter().any(GpuLimits::limits)
    }

    /// The page for the container. `None` if something does not fit into it, which [`crate::decide()`] has ruled out.
    #[must_use]
    pub fn page(&self) -> Option<LimitsPage> {
        let entries: Option<Vec<GpuLimit>> = self.gpus.iter().map(GpuLimits::entry).collect();
        let entries = entries.filter(|entries| entries.len() <= vgpu_region::MAX_GPUS)?;
        let mut page = LimitsPage::new(entries).with_priority(self.priority);
        if let Some(level) = self.log_level {
            page = page.with_log_level(log_level(level));
        }
        if let Some(path) = &self.hami_cache {
            page = page.with_hami_cache(path)?;
        }
        if let Some(folder) = &self.trace_dir {
            page = page.with_trace_dir(folder)?;
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
    fn what_is_decided_is_what_the_page_says() {
        let limits = Limits {
            gpus: vec![
                GpuLimits { memory: Some(1 << 30), cores: Some(30), ..GpuLimits::none(Which::Index(1)) },
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
    fn what_does_not_fit_gives_no_page() {
        let many = Limits { gpus: vec![GpuLimits::none(Which::All); vgpu_region::MAX_GPUS + 1], ..Limits::default() };
        assert!(many.page().is_none());
        let long = Limits { trace_dir: Some("/".repeat(256)), ..Limits::default() };
        assert!(long.page().is_none());
        let bad = Limits { gpus: vec![GpuLimits::none(Which::Uuid("GPU-1".to_owned()))], ..Limits::default() };
        assert!(bad.page().is_none());
    }
}
