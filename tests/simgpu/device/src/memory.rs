//! Who holds how many bytes of which GPU.

use std::sync::atomic::Ordering;

use crate::layout::{MAX_GPUS, SlotState};
use crate::robust_mutex::Guard;
use crate::{Device, Slot, locks, slot};

/// The GPU has not that many bytes left.
#[derive(Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// Whether NVML shows bytes for the process that holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// It does.
    Visible,
    /// Only the GPU's total shows them.
    Hidden,
}

/// One GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// All there is, as NVML counts.
    pub total: u64,
    /// What the driver keeps for itself.
    pub reserved: u64,
    /// What is in use, without `reserved`.
    pub used: u64,
    /// `total` - `reserved` - `used`.
    pub free: u64,
}

impl Device {
    /// One GPU's memory now, without what dead processes held.
    #[must_use]
    pub fn memory(&self, gpu: usize) -> GpuMemory {
        let guard = self.lock();
        self.reap(&guard);
        self.memory_locked(gpu)
    }

    fn memory_locked(&self, gpu: usize) -> GpuMemory {
        let config = self.config();
        let state = &self.state.gpus[gpu];
        let used = config.baseline_bytes + state.visible.load(Ordering::Relaxed) + state.hidden.load(Ordering::Relaxed);
        GpuMemory { total: config.total_bytes, reserved: config.reserved_bytes, used, free: config.cuda_total().saturating_sub(used) }
    }

    /// Highest sum of what NVML showed for all processes of a GPU at any instant since the last reset, in bytes.
    #[must_use]
    pub fn peak(&self, gpu: usize) -> u64 {
        self.state.gpus[gpu].peak.load(Ordering::Relaxed)
    }

    /// Highest sum of what all processes held of a GPU at any instant since then, shown or not, in bytes.
    #[must_use]
    pub fn peak_total(&self, gpu: usize) -> u64 {
        self.state.gpus[gpu].peak_total.load(Ordering::Relaxed)
    }

    /// The same as [`Device::peak`] for one group of processes: a PID namespace's inode in decimal, or a `SIMGPU_GROUP`.
    #[must_use]
    pub fn group_peak(&self, group: &str, gpu: usize) -> u64 {
        let key = group.parse::<u64>().unwrap_or_else(|_| slot::name_key(group));
        let found = self.state.groups.iter().find(|group| group.key.load(Ordering::Relaxed) == key);
        found.map_or(0, |group| group.peak[gpu].load(Ordering::Relaxed))
    }

    /// Every group's key and its peak on a GPU, in bytes.
    #[must_use]
    pub fn group_peaks(&self, gpu: usize) -> Vec<(u64, u64)> {
        let groups = self.state.groups.iter();
        let pairs = groups.map(|group| (group.key.load(Ordering::Relaxed), group.peak[gpu].load(Ordering::Relaxed)));
        pairs.filter(|&(key, _)| key != 0).collect()
    }

    /// Starts peaks and the count of NVML calls anew.
    pub fn reset(&self) {
        let guard = self.lock();
        self.reap(&guard);
        self.state.nvml_calls.store(0, Ordering::Relaxed);
        for (index, gpu) in self.state.gpus.iter().enumerate() {
            gpu.peak.store(gpu.visible.load(Ordering::Relaxed), Ordering::Relaxed);
            gpu.peak_total.store(gpu.visible.load(Ordering::Relaxed) + gpu.hidden.load(Ordering::Relaxed), Ordering::Relaxed);
            for (number, group) in self.state.groups.iter().enumerate() {
                group.peak[index].store(self.group_visible(number, index), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        self.state.mutex.lock(|| self.recount())
    }

    /// After a process died inside the mutex: the slots are right at every instant, the sums follow from them.
    fn recount(&self) {
        for (index, gpu) in self.state.gpus.iter().enumerate() {
            let sum = |bytes_of: fn(&SlotState, usize) -> u64| self.used_slots().map(|slot| bytes_of(slot, index)).sum::<u64>();
            gpu.visible.store(sum(|slot, gpu| slot.gpus[gpu].visible.load(Ordering::Relaxed)), Ordering::Relaxed);
            gpu.hidden.store(sum(|slot, gpu| slot.gpus[gpu].hidden.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    fn used_slots(&self) -> impl Iterator<Item = &SlotState> {
        self.state.slots[..self.state.high_water.load(Ordering::Relaxed) as usize].iter()
    }

    fn group_visible(&self, group: usize, gpu: usize) -> u64 {
        let members =
            self.used_slots().filter(|slot| slot.pid.load(Ordering::Relaxed) != 0 && slot.group.load(Ordering::Relaxed) as usize == group);
        members.map(|slot| slot.gpus[gpu].visible.load(Ordering::Relaxed)).sum()
    }

    /// Takes back what dead processes held.
    pub(crate) fn reap(&self, _guard: &Guard<'_>) {
        let Some(fd) = self.descriptor() else { return };
        for (index, slot) in self.used_slots().enumerate() {
            if slot.pid.load(Ordering::Relaxed) != 0 && !self.is_own(index) && !locks::is_locked(fd, index) {
                self.free_slot(slot);
            }
        }
    }

    /// Empties a slot whose owner is gone. Called under the mutex.
    pub(crate) fn free_slot(&self, slot: &SlotState) {
        for (gpu, held) in slot.gpus.iter().enumerate() {
            let shared = &self.state.gpus[gpu];
            shared.visible.fetch_sub(held.visible.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            shared.hidden.fetch_sub(held.hidden.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            held.contexts.store(0, Ordering::Relaxed);
            held.runnable.store(0, Ordering::Relaxed);
            held.busy.clear();
        }
        // Last: of one who is killed on the way here, the rest is taken back by whoever comes next.
        slot.pid.store(0, Ordering::Relaxed);
    }
}

impl Slot {
    /// Takes bytes of a GPU for this process.
    ///
    /// # Errors
    /// [`Full`] when they are not there even after dead processes gave back theirs.
    pub fn charge(&self, gpu: usize, bytes: u64, visibility: Visibility) -> Result<(), OutOfMemory> {
        let device = &*self.device;
        let guard = device.lock();
        let group_index = self.state().group.load(Ordering::Relaxed) as usize;
        let shared = &device.state.gpus[gpu];
        let group_peak = &device.state.groups[group_index].peak[gpu];
        let visible_bytes = if visibility == Visibility::Visible { bytes } else { 0 };
        let held = || shared.visible.load(Ordering::Relaxed) + shared.hidden.load(Ordering::Relaxed);
        let would_be_peak = |device: &Device| {
            held() + bytes > shared.peak_total.load(Ordering::Relaxed)
                || shared.visible.load(Ordering::Relaxed) + visible_bytes > shared.peak.load(Ordering::Relaxed)
                || device.group_visible(group_index, gpu) + visible_bytes > group_peak.load(Ordering::Relaxed)
        };
        // What the dead held neither refuses anybody nor counts in a peak.
        if device.memory_locked(gpu).free < bytes || would_be_peak(device) {
            device.reap(&guard);
        }
        if device.memory_locked(gpu).free < bytes {
            return Err(OutOfMemory);
        }
        let own = &self.state().gpus[gpu];
        let (mine, all) = match visibility {
            Visibility::Visible => (&own.visible, &shared.visible),
            Visibility::Hidden => (&own.hidden, &shared.hidden),
        };
        mine.fetch_add(bytes, Ordering::Relaxed);
        all.fetch_add(bytes, Ordering::Relaxed);
        shared.peak.fetch_max(shared.visible.load(Ordering::Relaxed), Ordering::Relaxed);
        shared.peak_total.fetch_max(held(), Ordering::Relaxed);
        group_peak.fetch_max(device.group_visible(group_index, gpu), Ordering::Relaxed);
        Ok(())
    }

    /// Gives bytes back.
    pub fn release(&self, gpu: usize, bytes: u64, visibility: Visibility) {
        let _guard = self.device.lock();
        let held = &self.state().gpus[gpu];
        let shared = &self.device.state.gpus[gpu];
        let (mine, all) = match visibility {
            Visibility::Visible => (&held.visible, &shared.visible),
            Visibility::Hidden => (&held.hidden, &shared.hidden),
        };
        let bytes = bytes.min(mine.load(Ordering::Relaxed));
        mine.fetch_sub(bytes, Ordering::Relaxed);
        all.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Says that this process has one context more (or less) on a GPU: NVML lists processes that have any.
    pub fn count_context(&self, gpu: usize, more: bool) {
        let contexts = &self.state().gpus[gpu].contexts;
        if more {
            contexts.fetch_add(1, Ordering::Relaxed);
        } else {
            contexts.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What NVML shows for this process on a GPU, in bytes.
    #[must_use]
    pub fn visible(&self, gpu: usize) -> u64 {
        debug_assert!(gpu < MAX_GPUS);
        self.state().gpus[gpu].visible.load(Ordering::Relaxed)
    }
}
