//! The limits page: what a container may have, decided by the host, mapped read-only inside.
//!
//! The host side can change the numbers while the container runs, by atomic stores into the same page; processes see it at
//! their next call. The tenant cannot write it. It has a fixed layout, so that the library has nothing to parse.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

mod log_level;
mod turn;

pub use log_level::LogLevel;
pub use turn::Turn;

use crate::MAX_GPUS;
use crate::uuid::Uuid;

/// First word of the page: `vgpulim` and a zero.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpulim\0");
/// Layout version; a library refuses another one.
pub const VERSION: u32 = 1;
/// Size of the file and of the mapping in bytes.
pub const PAGE_SIZE: usize = 4096;

/// The bit of the flags that says that processes record what they do.
const TRACED: u32 = 1;
/// The bit of the flags that says that NVIDIA's MPS shares out the GPU's time.
const MPS: u32 = 2;

/// Which GPUs an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Every GPU that has no entry of its own.
    All,
    /// The GPU or MIG device with this UUID.
    Uuid(Uuid),
    /// The container's n-th visible GPU, counted from 0 in NVML's order.
    Index(u32),
}

/// The limits of one GPU in one container. A zero means "no such limit".
#[repr(C)]
#[derive(Debug, Default)]
pub struct GpuLimit {
    kind: u32,
    index: u32,
    uuid: [u8; 16],
    /// Device memory, in bytes.
    pub memory: AtomicU64,
    /// Memory that may be spilled to the host on top of [`GpuLimit::memory`], in bytes (oversubscription).
    pub spill: AtomicU64,
    /// Device memory as a percentage of the GPU's own, 1-100, used where [`GpuLimit::memory`] is zero.
    pub memory_percent: AtomicU32,
    /// Compute time, in percent of the GPU's, 1-99; 0 or 100 and more is no limit.
    pub cores: AtomicU32,
    /// Up to this percentage while nobody else wants the GPU; 0 is "no more than `cores`".
    pub cores_soft: AtomicU32,
    /// What one context costs on this GPU in MiB, if the host side has measured it; 0 is unknown.
    pub context_mib: AtomicU32,
    reserved: [u64; 1],
}

impl GpuLimit {
    /// An entry without limits for the GPUs that `selector` names.
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

    /// Which GPUs the entry is for; `None` for an unused entry.
    #[must_use]
    pub fn selector(&self) -> Option<Selector> {
        match self.kind {
            1 => Some(Selector::All),
            2 => Some(Selector::Uuid(Uuid(self.uuid))),
            3 => Some(Selector::Index(self.index)),
            _ => None,
        }
    }

    /// The device memory limit in bytes for a GPU of `total` bytes; `None` without one.
    #[must_use]
    #[inline]
    pub fn memory_for(&self, total: u64) -> Option<u64> {
        match self.memory.load(Acquire) {
            0 => self.memory_looked_up(total),
            bytes => Some(bytes),
        }
    }

    #[inline(never)]
    fn memory_looked_up(&self, total: u64) -> Option<u64> {
        // Bytes and percent are two words. Where one takes the other's place between the two looks, both seem to be none: then what is
        // there now is there at the next look, and only a third and a fourth change in between could hide it again.
        (0..4).find_map(|_| match (self.memory.load(Acquire), self.memory_percent.load(Acquire)) {
            (0, 0) => None,
            (0, percent) => Some((u128::from(total) * u128::from(percent.min(100)) / 100) as u64),
            (bytes, _) => Some(bytes),
        })
    }

    /// The compute limit in percent; `None` without one.
    #[must_use]
    pub fn cores_limit(&self) -> Option<u32> {
        match self.cores.load(Relaxed) {
            1..=99 => Some(self.cores.load(Relaxed).clamp(1, 99)),
            _ => None,
        }
    }
}

/// The whole page.
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
    /// Counts live changes; a process that cached anything derived from the page compares it.
    pub generation: AtomicU64,
    reserved: [u64; 3],
    gpus: [GpuLimit; MAX_GPUS],
    hami_cache: [u8; 256],
    trace_dir: [u8; 256],
    turns: [Turn; MAX_GPUS],
    padding: [u8; PAGE_SIZE - 64 - MAX_GPUS * (size_of::<GpuLimit>() + size_of::<Turn>()) - 512],
}

const _: () = assert!(size_of::<LimitsPage>() == PAGE_SIZE && cfg!(target_endian = "little"));

/// Why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// It does not start with our magic word.
    Magic,
    /// It was written for another layout.
    Version(u32),
    /// Its own figures contradict each other.
    Corrupt,
}

impl LimitsPage {
    /// A page with these entries; at most [`MAX_GPUS`] count.
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
            reserved: [0; 3],
            gpus,
            hami_cache: [0; 256],
            trace_dir: [0; 256],
            turns: core::array::from_fn(|_| Turn::default()),
            padding: [0; _],
        }
    }

    /// With this task priority: 0 goes before 1.
    #[must_use]
    pub fn with_priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// With this log level.
    #[must_use]
    pub fn with_log_level(mut self, level: LogLevel) -> Self {
        self.log_level = level as u32;
        self
    }

    /// With a file for HAMi's monitor at this path in the container. `None` if the path is longer than 255 bytes.
    #[must_use]
    pub fn with_hami_cache(mut self, path: &str) -> Option<Self> {
        copy_text(&mut self.hami_cache, path)?;
        Some(self)
    }

    /// With traces written to this folder in the container. `None` if the path is longer than 255 bytes.
    #[must_use]
    pub fn with_trace_dir(mut self, path: &str) -> Option<Self> {
        copy_text(&mut self.trace_dir, path)?;
        self.flags.fetch_or(TRACED, Relaxed);
        Some(self)
    }

    /// With the GPU's time shared out by NVIDIA's MPS to processes that are its clients.
    #[must_use]
    pub fn with_mps(self) -> Self {
        self.flags.fetch_or(MPS, Relaxed);
        self
    }

    /// Whether processes that are MPS's clients are held to the limit by it.
    #[must_use]
    pub fn is_mps(&self) -> bool {
        self.flags.load(Relaxed) & MPS != 0
    }

    /// Whether the container's processes record what they do ([`crate::trace`]).
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.flags.load(Relaxed) & TRACED != 0
    }

    /// Says from now on whether they do. They see it at their next launch or copy.
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
        // SAFETY: the word is in this page; waking nobody is fine.
        unsafe { libc::syscall(libc::SYS_futex, self.generation.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Returns the word that [`LimitsPage::notify`] changes, to be waited on as a futex, and its value. Has to be read before the limits.
    #[must_use]
    pub fn changes(&self) -> (&AtomicU32, u32) {
        let now = self.generation.load(Acquire);
        // SAFETY: the lower half of the count, which lies first (below); nobody but the kernel reads it by this reference.
        (unsafe { AtomicU32::from_ptr(self.generation.as_ptr().cast()) }, now as u32)
    }

    /// The bytes to write to the file.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the struct is repr(C) without padding between its fields (asserted by its size), so every byte is initialised.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), PAGE_SIZE) }
    }

    /// Checks a mapped page before anything else is read from it.
    ///
    /// # Errors
    /// Says what is wrong with it.
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

    /// The entries in use.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuLimit> {
        self.gpus.iter().take(self.gpu_count as usize)
    }

    /// The entry for a GPU: by UUID first, then by index, then the one for all.
    pub fn find(&self, uuid: Uuid, index: Option<u32>) -> Option<&GpuLimit> {
        let by = |wanted: Selector| self.gpus().find(|entry| entry.selector() == Some(wanted));
        by(Selector::Uuid(uuid)).or_else(|| by(Selector::Index(index?))).or_else(|| by(Selector::All))
    }

    /// Whether an entry is keyed by index, so that a reader has to know the container's order of GPUs.
    #[must_use]
    pub fn has_index_entries(&self) -> bool {
        self.gpus().any(|entry| matches!(entry.selector(), Some(Selector::Index(_))))
    }

    /// The turns on a GPU; `None` while no arbiter has given it any.
    #[must_use]
    pub fn turn(&self, uuid: Uuid) -> Option<&Turn> {
        let words = uuid.words();
        self.turns.iter().find(|turn| uuid != Uuid::default() && turn.uuid.each_ref().map(|word| word.load(Relaxed)) == words)
    }

    /// The same for the arbiter, which gives the GPU its place. `None` if all are taken.
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

    /// Task priority: 0 goes before 1.
    #[must_use]
    pub fn priority(&self) -> u32 {
        self.priority
    }

    /// How much to log; an unknown number counts as the default.
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

    /// Path in the container for HAMi's shared region, zero-terminated; empty without one.
    #[must_use]
    pub fn hami_cache(&self) -> &[u8] {
        text(&self.hami_cache)
    }

    /// Folder in the container for traces; empty without one.
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
