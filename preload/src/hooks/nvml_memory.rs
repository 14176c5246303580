//! `nvmlDeviceGetMemoryInfo`: the share instead of the GPU. Also for programs that never start CUDA, such as `nvidia-smi`.

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

/// Limits and region, mapped without a slot in it.
#[derive(Debug)]
pub struct View {
    /// What the container may have.
    pub limits: &'static LimitsPage,
    /// What its processes have.
    pub region: &'static Region,
}

/// The container's limits and region; `None` if they cannot be read.
pub fn view() -> Option<&'static View> {
    static VIEW: AtomicPtr<View> = AtomicPtr::new(core::ptr::null_mut());
    // SAFETY: null or a view that is never freed.
    if let Some(view) = unsafe { VIEW.load(Acquire).as_ref() } {
        return Some(view);
    }
    let (limits, region) = session::files();
    let (limits, region) = (map::limits(limits).ok()?, map::region(region).ok()?);
    let fresh: *mut View = mmap::allocate();
    if fresh.is_null() {
        return None;
    }
    // SAFETY: freshly mapped. Two threads may both store one; either will do.
    unsafe {
        fresh.write(View { limits, region });
        VIEW.store(fresh, Release);
        Some(&*fresh)
    }
}

/// Total, free and used bytes as the container shall see them. `Ok(None)`: there is no limit.
fn share(device: Handle, total: u64, really_free: u64) -> Result<Option<(u64, u64, u64)>, Status> {
    let view = view().ok_or(OPERATING_SYSTEM)?;
    let Some(uuid) = nvml_query::uuid_of(device) else { return Ok(None) };
    let mut index = 0;
    // SAFETY: the program's own handle, and a variable for the answer.
    let index = (unsafe { driver::nvml_index(device, &raw mut index) } == SUCCESS).then_some(index);
    let Some(entry) = view.limits.find(uuid, index) else { return Ok(None) };
    let Some(limit) = entry.memory_for(total).map(|limit| limit.min(total)) else { return Ok(None) };
    let place = view.region.gpus.iter().position(|account| account.uuid() == Some(uuid));
    let (used, spilled) = place.map_or((0, 0), |place| used(view.region, place));
    // What may lie on the host counts, as it does for CUDA.
    let ceiling = entry.spill.load(Relaxed) / PAGE * PAGE;
    let (total, free) = (limit + ceiling, limit.saturating_sub(used).min(really_free) + ceiling.saturating_sub(spilled));
    Ok(Some((total, free, total - free)))
}

/// What the living hold of the device and of the host, in bytes. Nobody may have come by yet who gave back what the dead held.
fn used(region: &Region, place: usize) -> (u64, u64) {
    let census = map::Census::open(session::region_path());
    let most = |slot: &Slot| slot.gpus.get(place).map_or((0, 0), |charge| (charge.charge.most(), charge.spill.most()));
    let holders = region.used_slots().map(|(index, slot)| (index, most(slot))).filter(|(_, most)| *most != (0, 0));
    let living = holders.filter(|(index, _)| !census.is_dead(*index)).fold((0, 0), |sum, (_, most)| (sum.0 + most.0, sum.1 + most.1));
    let totals = region.gpus.get(place).map_or((0, 0), |account| (account.total.pages(), account.spilled.pages()));
    (living.0.min(totals.0).saturating_mul(PAGE), living.1.min(totals.1).saturating_mul(PAGE))
}

/// `nvmlDeviceGetMemoryInfo`
pub unsafe fn info(real: unsafe extern "C" fn(Handle, *mut Memory) -> Status, device: Handle, memory: *mut Memory) -> Status {
    // SAFETY: the program's own arguments; NVML has accepted the pointer when it succeeds.
    unsafe {
        let status = real(device, memory);
        if status != SUCCESS {
            return status;
        }
        match share(device, (*memory).total, (*memory).free) {
            Ok(Some((total, free, used))) => *memory = Memory { total, free, used },
            Ok(None) => {}
            Err(status) => return status,
        }
    }
    SUCCESS
}

/// `nvmlDeviceGetMemoryInfo_v2`. What the driver sets aside is no part of a share.
pub unsafe fn info_v2(real: unsafe extern "C" fn(Handle, *mut MemoryV2) -> Status, device: Handle, memory: *mut MemoryV2) -> Status {
    // SAFETY: as above.
    unsafe {
        let status = real(device, memory);
        if status != SUCCESS {
            return status;
        }
        match share(device, (*memory).total, (*memory).free) {
            Ok(Some((total, free, used))) => *memory = MemoryV2 { version: (*memory).version, total, reserved: 0, free, used },
            Ok(None) => {}
            Err(status) => return status,
        }
    }
    SUCCESS
}
