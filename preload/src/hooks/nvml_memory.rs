//! Memory as NVML reports it: the container's share instead of the whole GPU. Programs such as `nvidia-smi` ask without starting CUDA.

use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vgpu_region::ledger::PAGE;
use vgpu_region::limits::LimitsPage;
use vgpu_region::map;
use vgpu_region::region::{Region, Slot};

use crate::loader::driver;
use crate::os::mmap;
use crate::{nvml_query, session};
use vgpu_cuda_abi::cuda::{Handle, Status};
use vgpu_cuda_abi::nvml::{Memory, MemoryV2, OPERATING_SYSTEM, SUCCESS};

/// The container's limits and region, mapped by a process that takes no slot.
#[derive(Debug)]
pub struct View {
    /// The container's limits.
    pub limits: &'static LimitsPage,
    /// The accounts of its processes.
    pub region: &'static Region,
}

/// Returns the container's limits and region; `None` if they cannot be read.
pub fn view() -> Option<&'static View> {
    static VIEW: AtomicPtr<View> = AtomicPtr::new(core::ptr::null_mut());
    // SAFETY: null, or a view that is never freed.
    if let Some(view) = unsafe { VIEW.load(Acquire).as_ref() } {
        return Some(view);
    }
    let (limits, region) = session::files();
    let (limits, region) = (map::limits(limits).ok()?, map::region(region).ok()?);
    let fresh: *mut View = mmap::allocate();
    if fresh.is_null() {
        return None;
    }
    // SAFETY: freshly mapped. If two threads store a view, either is valid.
    unsafe {
        fresh.write(View { limits, region });
        VIEW.store(fresh, Release);
        Some(&*fresh)
    }
}

/// Returns total, free and used bytes of the container's share; `Ok(None)` without a limit.
///
/// # Errors
/// Returns the status to refuse the call with: the limits cannot be read.
fn share(device: Handle, total: u64, device_free: u64) -> Result<Option<(u64, u64, u64)>, Status> {
    let view = view().ok_or(OPERATING_SYSTEM)?;
    let Some(uuid) = nvml_query::uuid_of(device) else { return Ok(None) };
    let mut index = 0;
    // SAFETY: the program's own handle, and a variable for the answer.
    let index = (unsafe { driver::nvml_index(device, &raw mut index) } == SUCCESS).then_some(index);
    let Some(entry) = view.limits.find(uuid, index) else { return Ok(None) };
    let Some(limit) = entry.memory_for(total).map(|limit| limit.min(total)) else { return Ok(None) };
    let place = view.region.gpus.iter().position(|account| account.uuid() == Some(uuid));
    let (used, spilled) = place.map_or((0, 0), |place| used(view.region, place));
    // Memory that may lie on the host counts, as it does for CUDA.
    let ceiling = entry.spill.load(Relaxed) / PAGE * PAGE;
    let (total, free) = (limit + ceiling, limit.saturating_sub(used).min(device_free) + ceiling.saturating_sub(spilled));
    Ok(Some((total, free, total - free)))
}

/// Returns what living processes hold on the device and on the host, in bytes. The charges of dead processes may not have been given back
/// yet, so the account's totals can be higher.
fn used(region: &Region, place: usize) -> (u64, u64) {
    let census = map::Census::open(session::region_path());
    let charged = |slot: &Slot| slot.gpus.get(place).map_or((0, 0), |charge| (charge.charge.most(), charge.spill.most()));
    let holders = region.used_slots().map(|(index, slot)| (index, charged(slot))).filter(|(_, charged)| *charged != (0, 0));
    let living = holders.filter(|(index, _)| !census.is_dead(*index)).fold((0, 0), |sum, (_, held)| (sum.0 + held.0, sum.1 + held.1));
    let totals = region.gpus.get(place).map_or((0, 0), |account| (account.total.pages(), account.spilled.pages()));
    (living.0.min(totals.0).saturating_mul(PAGE), living.1.min(totals.1).saturating_mul(PAGE))
}

/// NVML's answers about memory, in bytes.
pub trait MemoryInfo {
    /// Returns the total and the free memory.
    fn total_and_free(&self) -> (u64, u64);
    /// Replaces total, free and used memory.
    fn set(&mut self, total: u64, free: u64, used: u64);
}

impl MemoryInfo for Memory {
    fn total_and_free(&self) -> (u64, u64) {
        (self.total, self.free)
    }

    fn set(&mut self, total: u64, free: u64, used: u64) {
        *self = Self { total, free, used };
    }
}

impl MemoryInfo for MemoryV2 {
    fn total_and_free(&self) -> (u64, u64) {
        (self.total, self.free)
    }

    /// The driver's reservation is no part of a share.
    fn set(&mut self, total: u64, free: u64, used: u64) {
        *self = Self { version: self.version, total, reserved: 0, free, used };
    }
}

/// Replaces the GPU's memory by the container's share.
pub unsafe fn info<T: MemoryInfo>(call: impl FnOnce() -> Status, device: Handle, memory: *mut T) -> Status {
    let status = call();
    if status != SUCCESS {
        return status;
    }
    // SAFETY: NVML has just written there.
    let memory = unsafe { &mut *memory };
    let (total, free) = memory.total_and_free();
    match share(device, total, free) {
        Ok(Some((total, free, used))) => memory.set(total, free, used),
        Ok(None) => {}
        Err(status) => return status,
    }
    SUCCESS
}
