//! GPUs and accounts of a process.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::MAX_GPUS;
use vgpu_region::ledger::{PAGE, pages};
use vgpu_region::limits::{GpuLimit, LimitsPage};
use vgpu_region::map::Membership;
use vgpu_region::region::{GpuAccount, GpuCharge, Slot};
use vgpu_region::uuid::Uuid;

use vgpu_cuda_abi::cuda::Device;

/// GPU that this process sees.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    /// CUDA's ordinal in this process.
    pub device: Device,
    /// UUID of the GPU or MIG device.
    pub uuid: Uuid,
    /// Total memory in bytes, as the driver reports it.
    pub total: u64,
    /// Index of the GPU's accounts in the region.
    pub place: usize,
    /// Limits of the container; `None` if it has none for this GPU.
    pub limit: Option<&'static GpuLimit>,
    /// Account of the container.
    pub account: &'static GpuAccount,
    /// This process's part of the account.
    pub charge: &'static GpuCharge,
}

impl Gpu {
    /// Returns the memory limit in bytes.
    #[inline]
    pub fn memory_limit(&self) -> Option<u64> {
        self.limit?.memory_for(self.total)
    }

    /// Returns the memory limit in whole pages; `u64::MAX` without one.
    #[inline]
    pub fn limit_pages(&self) -> u64 {
        self.memory_limit().map_or(u64::MAX, |bytes| bytes / PAGE)
    }

    /// Returns true if more of the GPU's memory is promised than it has.
    #[inline]
    pub fn is_overcommitted(&self) -> bool {
        self.limit.is_some_and(|limit| limit.overcommit.load(Relaxed) != 0)
    }

    /// Returns the pages that the account has left under the limit.
    #[inline]
    pub fn left(&self) -> u64 {
        self.limit_pages().saturating_sub(self.account.total.pages())
    }

    /// Returns the known cost of a context on this GPU in pages: measured in this container, else configured. `None` if it is unknown.
    pub fn context_pages(&self) -> Option<u32> {
        let configured = self.limit.map_or(0, |limit| limit.context_mib.load(Relaxed));
        [self.account.context_pages.load(Relaxed), pages(u64::from(configured) << 20)].into_iter().find(|&cost| cost != 0)
    }
}

/// Limits and accounts of a process.
#[derive(Debug)]
pub struct Session {
    /// Limits of the container.
    pub limits: &'static LimitsPage,
    /// The region, and this process's slot in it.
    pub membership: Membership,
    /// Number of GPUs.
    pub(super) count: usize,
    /// GPUs by CUDA's ordinal.
    pub(super) gpus: [Gpu; MAX_GPUS],
    /// Share of the GPU's multiprocessors that NVIDIA's MPS gives this process, in percent; 0 without MPS.
    pub mps_percent: u32,
}

impl Session {
    /// Returns the GPUs that this process sees, by CUDA's ordinal.
    pub fn gpus(&self) -> &[Gpu] {
        self.gpus.get(..self.count).unwrap_or_default()
    }

    /// Returns the used slots of the container's other processes, with their indices.
    ///
    /// A slot with this process's PID is not another's: a thread that starts a session while another thread does has one for a moment. Nor
    /// is that of a process with the same PID in another namespace: what NVML lists under that number here is this process.
    pub fn others(&self) -> impl Iterator<Item = (usize, &'static Slot)> {
        let (own, region) = (self.membership.index, self.membership.region);
        let pid = self.membership.slot().pid.load(Relaxed);
        region.used_slots().filter(move |(index, slot)| *index != own && slot.pid.load(Relaxed) != pid)
    }

    /// Returns the GPU with this ordinal.
    #[inline]
    pub fn gpu(&self, device: Device) -> Option<&Gpu> {
        self.gpus().get(usize::try_from(device).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::os::mmap;
    use vgpu_region::limits::LimitsPage;
    use vgpu_region::region::Region;

    #[test]
    fn a_second_slot_of_this_process_is_not_anothers() {
        // SAFETY: fresh pages, all zero, which are a valid region, and never unmapped.
        let region: &'static Region = unsafe { &*mmap::allocate() };
        for (slot, pid) in region.slots.iter().zip([7, 1, 1, 9]) {
            slot.pid.store(pid, Relaxed);
        }
        region.slots_used.store(4, Relaxed);
        let (account, charge) = (&region.gpus[0], &region.slots[1].gpus[0]);
        let gpu = Gpu { device: 0, uuid: Uuid::default(), total: 0, place: 0, limit: None, account, charge };
        let limits = Box::leak(Box::new(LimitsPage::new([])));
        let session = Session { limits, membership: Membership { region, index: 1 }, count: 1, gpus: [gpu; MAX_GPUS], mps_percent: 0 };
        assert_eq!(session.others().map(|(index, _)| index).collect::<Vec<_>>(), [0, 3]);
    }
}
