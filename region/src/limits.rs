//! The limits page: a container's limits, written by the host and mapped read-only in the container.
//!
//! The host can change the limits while the container runs, by atomic stores into the same page; processes see the change at their next call.
//! The tenant cannot write it. Its layout is fixed, so the library has nothing to parse.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

mod log_level;
mod turn;

pub use log_level::LogLevel;
pub use turn::Turn;

use crate::MAX_GPUS;
use crate::uuid::Uuid;

/// First word of the page: `vgpulim` and a zero byte.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpulim\0");
/// Layout version. The library rejects any other.
pub const VERSION: u32 = 1;
/// Size of the file and of the mapping in bytes.
pub const PAGE_SIZE: usize = 4096;

/// Flag: processes record their calls.
const TRACED: u32 = 1;
/// Flag: NVIDIA's MPS limits the GPU time.
const MPS: u32 = 2;

/// GPUs that an entry applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Every GPU that has no entry of its own.
    All,
    /// The GPU or MIG device with this UUID.
    Uuid(Uuid),
    /// The container's visible GPU with this index, from 0 in NVML's order.
    Index(u32),
}

/// Limits of one GPU in one container. Zero is no limit.
#[repr(C)]
#[derive(Debug, Default)]
pub struct GpuLimit {
    kind: u32,
    index: u32,
    uuid: [u8; 16],
    /// Device memory, in bytes.
    pub memory: AtomicU64,
    /// Memory that may be spilled to the host in addition to [`GpuLimit::memory`], in bytes (oversubscription).
    pub spill: AtomicU64,
    /// Device memory as a percentage of the GPU's own, 1 to 100. Applies if [`GpuLimit::memory`] is zero.
    pub memory_percent: AtomicU32,
    /// Share of the GPU's time in percent, 1 to 99. 0, and 100 and more, is no limit.
    pub cores: AtomicU32,
    /// Share in percent while no other tenant wants the GPU; 0 is [`GpuLimit::cores`].
    pub cores_soft: AtomicU32,
    /// Memory of one context on this GPU in MiB, as measured by the host; 0 if unknown.
    pub context_mib: AtomicU32,
    /// 0, [`GpuLimit::OVERCOMMITTED`] or [`GpuLimit::EVICTABLE`].
    pub overcommit: AtomicU32,
    reserved: [u32; 1],
}

impl GpuLimit {
    /// More memory is promised on the GPU than it has: a process that finds it full asks for room.
    pub const OVERCOMMITTED: u32 = 1;
    /// Besides, the container's memory may be moved to the host while others need the GPU's.
    pub const EVICTABLE: u32 = 2;

    /// Returns an entry without limits for these GPUs.
    #[must_use]
    pub fn new(selector: Selector) -> Self {
        let mut entry = Self::default();
        match selector {
            Selector::All => entry.kind = 1,
            Selector::Uuid(uuid) => (entry.kind, entry.uuid) = (2, uuid.0),
            Selector::Index(index) => (entry.kind, entry.index) = (3, index),
        }
        entry
    }

    /// Returns the GPUs that the entry applies to, or `None` for an unused entry.
    #[must_use]
    pub fn selector(&self) -> Option<Selector> {
        match self.kind {
            1 => Some(Selector::All),
            2 => Some(Selector::Uuid(Uuid(self.uuid))),
            3 => Some(Selector::Index(self.index)),
            _ => None,
        }
    }

    /// Returns the device memory limit in bytes for a GPU with `total` bytes, or `None` without a limit.
    #[must_use]
    #[inline]
    pub fn memory_for(&self, total: u64) -> Option<u64> {
        match self.memory.load(Acquire) {
            0 => self.memory_by_percent(total),
            bytes => Some(bytes),
        }
    }

    #[inline(never)]
    fn memory_by_percent(&self, total: u64) -> Option<u64> {
        // Bytes and percent are two words. If one replaces the other between the two loads, both appear to be unset. The next pair of
        // loads then finds it, unless a third and a fourth change in between hide it again.
        (0..4).find_map(|_| match (self.memory.load(Acquire), self.memory_percent.load(Acquire)) {
            (0, 0) => None,
            (0, percent) => Some((u128::from(total) * u128::from(percent.min(100)) / 100) as u64),
            (bytes, _) => Some(bytes),
        })
    }

    /// Returns the compute limit in percent, or `None` without a limit.
    #[must_use]
    pub fn cores_limit(&self) -> Option<u32> {
        match self.cores.load(Relaxed) {
            1..=99 => Some(self.cores.load(Relaxed).clamp(1, 99)),
            _ => None,
        }
    }
}

/// The page.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct LimitsPage {
    magic: u64,
    version: u32,
    size: u32,
    gpu_count: u32,
    flags: AtomicU32,
    priority: u32,
    log_level: u32,
    /// Number of changes. A process that caches anything derived from the page compares it.
    pub generation: AtomicU64,
    /// Number of changes of any turn's word or slice. Waited on as a futex, by the thread that switches channel groups.
    pub turn_changes: AtomicU32,
    padding_after_turn_changes: u32,
    reserved: [u64; 2],
    gpus: [GpuLimit; MAX_GPUS],
    hami_cache: [u8; 256],
    trace_dir: [u8; 256],
    turns: [Turn; MAX_GPUS],
    padding: [u8; PAGE_SIZE - 64 - MAX_GPUS * (size_of::<GpuLimit>() + size_of::<Turn>()) - 512],
}

const _: () = assert!(size_of::<LimitsPage>() == PAGE_SIZE && cfg!(target_endian = "little"));

/// Error of [`LimitsPage::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The page does not start with the magic word.
    Magic,
    /// The page has another layout version.
    Version(u32),
    /// The page's size or counts are invalid.
    Corrupt,
}

impl LimitsPage {
    /// Returns a page with these entries. Entries beyond [`MAX_GPUS`] are ignored.
    #[must_use]
    pub fn new<I: IntoIterator<Item = GpuLimit>>(entries: I) -> Self {
        let mut gpus: [GpuLimit; MAX_GPUS] = core::array::from_fn(|_| GpuLimit::default());
        let mut count = 0;
        for (place, entry) in gpus.iter_mut().zip(entries) {
            *place = entry;
            count += 1;
        }
        Self {
            magic: MAGIC,
            version: VERSION,
            size: PAGE_SIZE as u32,
            gpu_count: count,
            flags: AtomicU32::new(0),
            priority: 1,
            log_level: LogLevel::Warn as u32,
            generation: AtomicU64::new(0),
            turn_changes: AtomicU32::new(0),
            padding_after_turn_changes: 0,
            reserved: [0; 2],
            gpus,
            hami_cache: [0; 256],
            trace_dir: [0; 256],
            turns: core::array::from_fn(|_| Turn::default()),
            padding: [0; _],
        }
    }

    /// Sets the task priority: 0 comes before 1.
    #[must_use]
    pub fn with_priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the log level.
    #[must_use]
    pub fn with_log_level(mut self, level: LogLevel) -> Self {
        self.log_level = level as u32;
        self
    }

    /// Sets the path in the container of a file for HAMi's monitor. Returns `None` if the path is longer than 255 bytes.
    #[must_use]
    pub fn with_hami_cache(mut self, path: &str) -> Option<Self> {
        copy_text(&mut self.hami_cache, path)?;
        Some(self)
    }

    /// Sets the folder in the container for traces. Returns `None` if the path is longer than 255 bytes.
    #[must_use]
    pub fn with_trace_dir(mut self, path: &str) -> Option<Self> {
        copy_text(&mut self.trace_dir, path)?;
        self.flags.fetch_or(TRACED, Relaxed);
        Some(self)
    }

    /// Sets that NVIDIA's MPS limits the GPU time of processes that are its clients.
    #[must_use]
    pub fn with_mps(self) -> Self {
        self.flags.fetch_or(MPS, Relaxed);
        self
    }

    /// Returns true if NVIDIA's MPS limits the GPU time of processes that are its clients.
    #[must_use]
    pub fn is_mps(&self) -> bool {
        self.flags.load(Relaxed) & MPS != 0
    }

    /// Returns true if the container's processes record their calls ([`crate::trace`]).
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.flags.load(Relaxed) & TRACED != 0
    }

    /// Sets whether the container's processes record their calls. They see it at their next launch or copy.
    pub fn set_traced(&self, traced: bool) {
        match traced {
            true => self.flags.fetch_or(TRACED, Relaxed),
            false => self.flags.fetch_and(!TRACED, Relaxed),
        };
        self.notify();
    }

    /// Publishes changes: waiting launches see them at once, other processes at their next launch or copy.
    pub fn notify(&self) {
        self.generation.fetch_add(1, AcqRel);
        // SAFETY: the word is in this page; there need not be a waiting thread.
        unsafe { libc::syscall(libc::SYS_futex, self.generation.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Publishes a change of a turn, after its words were stored. For the arbiter only.
    pub fn notify_turn(&self, turn: &Turn) {
        self.turn_changes.fetch_add(1, AcqRel);
        for word in [&self.turn_changes, &turn.word] {
            // SAFETY: both words are in shared memory that stays mapped; there need not be a waiting thread.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    /// Returns the word that [`LimitsPage::notify`] changes, to be waited on as a futex, and its value. Has to be read before the limits.
    #[must_use]
    pub fn changes(&self) -> (&AtomicU32, u32) {
        let now = self.generation.load(Acquire);
        // SAFETY: the lower half of the count, which comes first on a little-endian machine (asserted above). Only the kernel reads it
        // through this reference.
        (unsafe { AtomicU32::from_ptr(self.generation.as_ptr().cast()) }, now as u32)
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the struct is repr(C) without padding between its fields (asserted by its size), so every byte is initialised.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), PAGE_SIZE) }
    }

    /// Checks a mapped page. Must precede any other use.
    ///
    /// # Errors
    /// The page is not a limits page of this version.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.magic != MAGIC {
            return Err(Invalid::Magic);
        }
        if self.version != VERSION {
            return Err(Invalid::Version(self.version));
        }
        if self.size as usize != PAGE_SIZE || self.gpu_count as usize > MAX_GPUS {
            return Err(Invalid::Corrupt);
        }
        Ok(())
    }

    /// Returns the entries in use.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuLimit> {
        self.gpus.iter().take(self.gpu_count as usize)
    }

    /// Returns the entry for a GPU: by UUID first, then by index, then the one for all.
    pub fn find(&self, uuid: Uuid, index: Option<u32>) -> Option<&GpuLimit> {
        let by = |wanted: Selector| self.gpus().find(|entry| entry.selector() == Some(wanted));
        by(Selector::Uuid(uuid)).or_else(|| by(Selector::Index(index?))).or_else(|| by(Selector::All))
    }

    /// Returns true if an entry selects by index, so that a reader needs the container's order of GPUs.
    #[must_use]
    pub fn has_index_entries(&self) -> bool {
        self.gpus().any(|entry| matches!(entry.selector(), Some(Selector::Index(_))))
    }

    /// Returns the turns on a GPU, or `None` if no arbiter has given any.
    #[must_use]
    pub fn turn(&self, uuid: Uuid) -> Option<&Turn> {
        let words = uuid.words();
        self.turns.iter().find(|turn| uuid != Uuid::default() && turn.uuid.each_ref().map(|word| word.load(Relaxed)) == words)
    }

    /// Returns the turns on a GPU, with a new place if it has none. For the arbiter only. Returns `None` if all places are taken.
    #[must_use]
    pub fn turn_for(&self, uuid: Uuid) -> Option<&Turn> {
        self.turn(uuid).or_else(|| {
            let free = self.turns.iter().find(|turn| turn.uuid.iter().all(|word| word.load(Relaxed) == 0))?;
            for (stored, word) in free.uuid.iter().zip(uuid.words()) {
                stored.store(word, Relaxed);
            }
            Some(free)
        })
    }

    /// Returns the task priority: 0 comes before 1.
    #[must_use]
    pub fn priority(&self) -> u32 {
        self.priority
    }

    /// Returns the log level. An unknown number is the default.
    #[must_use]
    pub fn log_level(&self) -> LogLevel {
        match self.log_level {
            0 => LogLevel::Off,
            1 => LogLevel::Error,
            3 => LogLevel::Info,
            4 => LogLevel::Debug,
            _ => LogLevel::Warn,
        }
    }

    /// Returns the path in the container of the file for HAMi's monitor; empty without one.
    #[must_use]
    pub fn hami_cache(&self) -> &[u8] {
        text(&self.hami_cache)
    }

    /// Returns the folder in the container for traces; empty without one.
    #[must_use]
    pub fn trace_dir(&self) -> &[u8] {
        text(&self.trace_dir)
    }
}

fn copy_text(place: &mut [u8; 256], value: &str) -> Option<()> {
    if value.len() > 255 || value.bytes().any(|byte| byte == 0) {
        return None;
    }
    place.get_mut(..value.len())?.copy_from_slice(value.as_bytes());
    Some(())
}

fn text(place: &[u8; 256]) -> &[u8] {
    place.split(|&byte| byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
