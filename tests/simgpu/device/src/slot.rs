//! Slot of a process in the state file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::identity::ProcessIdentity;
use crate::layout::{Group, MAX_GROUPS, MAX_SLOTS, SlotState};
use crate::locks;

/// Slot of this process. Its lock is released when the process ends, not when this value is dropped.
#[derive(Clone)]
pub struct Slot {
    pub(crate) device: Arc<Device>,
    pub(crate) index: usize,
}

impl Slot {
    /// Takes a free slot for this process.
    ///
    /// # Errors
    /// Living processes hold all slots, or the state file cannot be locked.
    pub fn attach(device: Arc<Device>) -> io::Result<Slot> {
        let fd = device.descriptor().ok_or_else(io::Error::last_os_error)?;
        let guard = device.lock();
        let index = (0..MAX_SLOTS)
            .find(|&index| !device.is_own(index) && locks::try_lock(fd, index))
            .ok_or_else(|| io::Error::new(io::ErrorKind::QuotaExceeded, "no free slot on the simulated GPU"))?;
        let state = &device.state.slots[index];
        device.free_slot(state);
        locks::mark_pid(fd, index);
        let identity = device.own_identity();
        state.pid_namespace.store(identity.pid_namespace, Ordering::Relaxed);
        state.start_ticks.store(identity.start_ticks, Ordering::Relaxed);
        state.group.store(device.group_index(group_key(identity.pid_namespace)), Ordering::Relaxed);
        state.pid.store(identity.pid, Ordering::Release);
        let high_water = u32::try_from(index + 1).unwrap_or(u32::MAX);
        device.state.high_water.fetch_max(high_water, Ordering::Relaxed);
        drop(guard);
        Ok(Slot { device, index })
    }

    /// Returns the machine.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the number of the slot, which no other living process has.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn state(&self) -> &SlotState {
        &self.device.state.slots[self.index]
    }
}

/// Returns the key of this process' group: `SIMGPU_GROUP` if set, else the PID namespace.
fn group_key(namespace: u64) -> u64 {
    std::env::var("SIMGPU_GROUP").map_or(namespace.max(1), |name| name_key(&name))
}

/// Returns the key of a named group.
pub(crate) fn name_key(name: &str) -> u64 {
    // FNV-1a; the top bit distinguishes names from inodes.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash | 1 << 63
}

impl Device {
    /// Returns the index of the group with this key, creating it if needed. If all groups are in use, returns 0. Called under the mutex.
    fn group_index(&self, key: u64) -> u32 {
        let groups: &[Group; MAX_GROUPS] = &self.state.groups;
        let found = groups.iter().position(|group| group.key.load(Ordering::Relaxed) == key);
        let index = found.or_else(|| groups.iter().position(|group| group.key.load(Ordering::Relaxed) == 0)).unwrap_or(0);
        if found.is_none() && groups[index].key.load(Ordering::Relaxed) == 0 {
            groups[index].key.store(key, Ordering::Relaxed);
        }
        u32::try_from(index).unwrap_or(0)
    }

    /// Returns whether the slot belongs to this process. Locks cannot tell: a process does not conflict with its own.
    pub(crate) fn is_own(&self, index: usize) -> bool {
        let slot = &self.state.slots[index];
        let owner = ProcessIdentity {
            pid: slot.pid.load(Ordering::Acquire),
            pid_namespace: slot.pid_namespace.load(Ordering::Relaxed),
            start_ticks: slot.start_ticks.load(Ordering::Relaxed),
        };
        owner.pid == std::process::id() && owner == self.own_identity()
    }
}
