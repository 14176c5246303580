//! A share of a GPU for processes in no container: a folder with limits and accounts.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use tempfile::TempDir;
use vgpu_region::limits::{GpuLimit, LimitsPage, Selector};
use vgpu_region::map::{self, Census};

/// The folder; removed when this is dropped.
pub struct Share(TempDir);

impl Share {
    /// Of each GPU `memory` bytes, without a limit of its time.
    ///
    /// # Errors
    /// Says what failed.
    pub fn make(memory: u64) -> Result<Share, String> {
        let limit = GpuLimit::new(Selector::All);
        limit.memory.store(memory, Relaxed);
        Share::with([limit])
    }

    /// With these limits.
    ///
    /// # Errors
    /// Says what failed.
    pub fn with(limits: impl IntoIterator<Item = GpuLimit>) -> Result<Share, String> {
        let folder = TempDir::with_prefix("vgpu-share-").map_err(|why| why.to_string())?;
        std::fs::write(folder.path().join("limits"), LimitsPage::new(limits).as_bytes()).map_err(|why| why.to_string())?;
        let region = std::fs::File::create(folder.path().join("region")).map_err(|why| why.to_string())?;
        map::format(region.as_raw_fd()).map_err(|why| why.to_string())?;
        Ok(Share(folder))
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Puts a program under this share by a library.
    pub fn limits<'a>(&self, library: &str, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_PRELOAD", library).env("VGPU_DIR", self.folder())
    }

    /// What the accounts say now of the GPU that most is held of: these programs use one.
    ///
    /// # Errors
    /// Says what failed.
    pub fn ledger(&self) -> Result<Ledger, String> {
        let path = std::ffi::CString::new(self.folder().join("region").to_string_lossy().into_owned()).map_err(|why| why.to_string())?;
        let region = map::region(&path).map_err(|why| why.to_string())?;
        let census = Census::open(&path);
        let used = |place: &usize| (region.gpus[*place].total.bytes(), region.gpus[*place].refused.load(Relaxed));
        let place = (0..region.gpus.len()).rev().max_by_key(used).unwrap_or(0);
        let account = &region.gpus[place];
        let living = region.used_slots().filter(|&(index, _)| !census.is_dead(index));
        let bytes = |pages: u32| u64::from(pages) * vgpu_region::ledger::PAGE;
        let processes = living.map(|(_, slot)| {
            let account = &slot.gpus[place];
            Held {
                pid: slot.pid.load(Relaxed),
                bytes: bytes(account.charge.held()),
                managed: bytes(account.managed.load(Relaxed)),
                overhead: bytes(account.overhead.load(Relaxed)),
                in_flight: account.charge.in_flight(),
            }
        });
        let (total, spilled, refused) = (account.total.bytes(), account.spilled.bytes(), account.refused.load(Relaxed));
        let ledger = Ledger { total, spilled, refused, processes: processes.collect() };
        // SAFETY: nothing of the mapping is used below.
        unsafe { map::unmap(region) };
        Ok(ledger)
    }
}

impl Share {
    /// GPU time charged so far, in nanoseconds, on all GPUs.
    ///
    /// # Errors
    /// Says what failed.
    pub fn gpu_time(&self) -> Result<u64, String> {
        let path = std::ffi::CString::new(self.folder().join("region").to_string_lossy().into_owned()).map_err(|why| why.to_string())?;
        let region = map::region(&path).map_err(|why| why.to_string())?;
        let time = region.gpus.iter().map(|account| account.budget.used.load(Relaxed)).sum();
        // SAFETY: nothing of the mapping is used below.
        unsafe { map::unmap(region) };
        Ok(time)
    }
}

/// Accounts, bytes throughout.
#[derive(Debug)]
pub struct Ledger {
    /// What all processes hold.
    pub total: u64,
    /// What they have on the host beyond that.
    pub spilled: u64,
    /// How many requests were refused.
    pub refused: u64,
    /// Each living process.
    pub processes: Vec<Held>,
}

/// One process' account, bytes throughout.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Whose.
    pub pid: u32,
    /// All that it holds.
    pub bytes: u64,
    /// How much of that NVML does not list by process.
    pub managed: u64,
    /// How much of it no allocation call asked for.
    pub overhead: u64,
    /// Whether a call is under way.
    pub in_flight: bool,
}
