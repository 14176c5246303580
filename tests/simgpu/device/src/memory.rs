//! Memory accounting: bytes held by each process on each GPU.

use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::layout::{MAX_GPUS, SlotState};
use crate::locks;
use crate::robust_mutex::Guard;
use crate::slot::{self, Slot};

/// Error: the GPU does not have enough free memory.
#[derive(Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// Whether NVML attributes memory to the process that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Attributed to the process.
    Visible,
    /// Only in the GPU's total.
    Hidden,
}

/// Memory of one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// Total as NVML reports it.
    pub total: u64,
    /// Reserved by the driver.
    pub reserved: u64,
    /// In use, excluding `reserved`.
    pub used: u64,
    /// `total` - `reserved` - `used`.
    pub free: u64,
}

impl Device {
    /// Returns the current memory figures of one GPU, after reclaiming the memory of dead processes.
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

    /// Returns the highest sum of [`Visibility::Visible`] memory of all processes since the last reset, in bytes.
    #[must_use]
    pub fn peak(&self, gpu: usize) -> u64 {
        self.state.gpus[gpu].peak.load(Ordering::Relaxed)
    }

    /// Returns the highest sum of all memory of all processes since the last reset, hidden memory included, in bytes.
    #[must_use]
    pub fn peak_total(&self, gpu: usize) -> u64 {
        self.state.gpus[gpu].peak_total.load(Ordering::Relaxed)
    }

    /// Returns [`Device::peak`] of one group of processes: the inode of a PID namespace in decimal, or a `SIMGPU_GROUP`.
    #[must_use]
    pub fn group_peak(&self, group: &str, gpu: usize) -> u64 {
        let key = group.parse::<u64>().unwrap_or_else(|_| slot::name_key(group));
        let found = self.state.groups.iter().find(|group| group.key.load(Ordering::Relaxed) == key);
        found.map_or(0, |group| group.peak[gpu].load(Ordering::Relaxed))
    }

    /// Returns the key of every group and its peak on a GPU, in bytes.
    #[must_use]
    pub fn group_peaks(&self, gpu: usize) -> Vec<(u64, u64)> {
        let groups = self.state.groups.iter();
        let pairs = groups.map(|group| (group.key.load(Ordering::Relaxed), group.peak[gpu].load(Ordering::Relaxed)));
        pairs.filter(|&(key, _)| key != 0).collect()
    }

    /// Resets the peaks and the count of NVML calls.
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

    /// Recomputes the sums after a process died while it held the mutex. The slots are consistent at every instant.
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

    /// Reclaims the memory of dead processes.
    pub(crate) fn reap(&self, _guard: &Guard<'_>) {
        let Some(fd) = self.descriptor() else { return };
        for (index, slot) in self.used_slots().enumerate() {
            if slot.pid.load(Ordering::Relaxed) != 0 && !self.is_own(index) && !locks::is_locked(fd, index) {
                self.free_slot(slot);
            }
        }
    }

    /// Clears the slot of a dead process. Called under the mutex.
    pub(crate) fn free_slot(&self, slot: &SlotState) {
        for (gpu, held) in slot.gpus.iter().enumerate() {
            let shared = &self.state.gpus[gpu];
            shared.visible.fetch_sub(held.visible.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            shared.hidden.fetch_sub(held.hidden.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            held.contexts.store(0, Ordering::Relaxed);
            held.runnable.store(0, Ordering::Relaxed);
            held.reset_controls(self.config().slice_ns);
            held.busy.clear();
        }
        // Last, so that the next process finishes the cleanup if this one is killed before.
        slot.pid.store(0, Ordering::Relaxed);
    }
}

impl Slot {
    /// Charges bytes of a GPU to this process.
    ///
    /// # Errors
    /// [`OutOfMemory`] if they are not free even after the memory of dead processes was reclaimed.
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
        // Memory of dead processes must neither cause a refusal nor count in a peak.
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

    /// Releases bytes.
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

    /// Counts one context more or less for this process on a GPU. NVML lists the processes that have a context.
    pub fn count_context(&self, gpu: usize, more: bool) {
        let contexts = &self.state().gpus[gpu].contexts;
        if more {
            contexts.fetch_add(1, Ordering::Relaxed);
        } else {
            contexts.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that NVML attributes to this process on a GPU.
    #[must_use]
    pub fn visible(&self, gpu: usize) -> u64 {
        debug_assert!(gpu < MAX_GPUS);
        self.state().gpus[gpu].visible.load(Ordering::Relaxed)
    }
}
