//! `nvmlDeviceGetMemoryInfo`: the share instead of the GPU. Also for programs that never start CUDA, such as `nvidia-smi`.

use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use vgpu_region::ledger::PAGE;
use vgpu_region::limits::LimitsPage;
use vgpu_region::map;
use vgpu_region::region::Region;

use super::sys::{Memory, MemoryV2, OPERATING_SYSTEM, SUCCESS};
use crate::cuda::{Handle, Status};
use crate::{driver, session};

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
    let fresh: *mut View = session::allocate();
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
    let Some(uuid) = super::uuid_of(device) else { return Ok(None) };
    let mut index = 0;
    // SAFETY: the program's own handle, and a variable for the answer.
    let index = (unsafe { driver::nvml_index(device, &raw mut index) } == SUCCESS).then_some(index);
    let Some(limit) = view.limits.find(uuid, index).and_then(|limit| limit.memory_for(total)) else { return Ok(None) };
    let limit = limit.min(total);
    let place = view.region.gpus.iter().position(|account| account.uuid() == Some(uuid));
    let used = place.map_or(0, |place| used(view.region, place));
    let free = limit.saturating_sub(used).min(really_free);
    Ok(Some((limit, free, limit - free)))
}

/// What the living hold, in bytes. Nobody may have come by yet who gave back what the dead held.
fn used(region: &Region, place: usize) -> u64 {
    let census = map::Census::open(session::region_path());
    let charge = |slot: &vgpu_region::region::Slot| slot.gpus.get(place).map_or(0, |charge| charge.charge.most());
    let living: u64 =
        region.used_slots().filter(|(index, slot)| charge(slot) != 0 && !census.is_dead(*index)).map(|(_, slot)| charge(slot)).sum();
    let total = region.gpus.get(place).map_or(0, |account| account.total.pages());
    living.min(total).saturating_mul(PAGE)
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
