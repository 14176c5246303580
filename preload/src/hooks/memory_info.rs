//! What a program sees of the device's memory: its share.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::PAGE;

use crate::memory::ledger::{spilled, watermark};
use crate::memory::objects::context_table;
use crate::memory::reconcile::dead;
use crate::os::clock;
use crate::session;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{Device, SUCCESS, Status};

/// Free and total bytes under the limit, given what the device really has free, and with what may lie on the host.
pub fn share(gpu: &Gpu, really_free: u64) -> Option<(u64, u64)> {
    let limit = gpu.memory_limit()?.min(gpu.total);
    // What the dead held is not in use any more. Near the limit every byte counts; else once a second will do.
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    let second = clock::coarse_second();
    if watermark::is_near(gpu) || LOOKED.load(Relaxed) != second {
        LOOKED.store(second, Relaxed);
        dead::recover(gpu);
    }
    let left = limit.saturating_sub(gpu.account.total.pages().saturating_mul(PAGE));
    let (spill, ceiling) = spilled::room(gpu);
    Some((left.min(really_free) + spill, limit + ceiling))
}

/// `cuMemGetInfo_v2`. Either pointer may be null.
#[inline]
pub unsafe fn info(real: unsafe extern "C" fn(*mut usize, *mut usize) -> Status, free: *mut usize, total: *mut usize) -> Status {
    let mut really_free = 0;
    // SAFETY: the program's own argument, and a variable of ours.
    unsafe {
        let status = real(&raw mut really_free, total);
        if status != SUCCESS {
            return status;
        }
        let (left, limit) = match context_table::current() {
            Ok(current) => match share(current.gpu, really_free as u64) {
                Some(share) => share,
                None => (really_free as u64, 0),
            },
            Err(None) => (really_free as u64, 0),
            Err(Some(status)) => return status,
        };
        if !free.is_null() {
            *free = left as usize;
        }
        if !total.is_null() && limit != 0 {
            *total = limit as usize;
        }
    }
    SUCCESS
}

/// `cuMemGetInfo`, in 32 bits.
pub unsafe fn info_v1(real: unsafe extern "C" fn(*mut u32, *mut u32) -> Status, free: *mut u32, total: *mut u32) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(free, total) };
    if status == SUCCESS
        && let Ok(current) = context_table::current()
        && let Some((left, limit)) = share(current.gpu, u64::MAX)
    {
        let clamp = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        // SAFETY: the driver has accepted the pointers; null is checked.
        unsafe {
            if !free.is_null() {
                *free = clamp(left);
            }
            if !total.is_null() {
                *total = clamp(limit);
            }
        }
    }
    status
}

/// `cuDeviceTotalMem_v2`
pub unsafe fn device_total(real: unsafe extern "C" fn(*mut usize, Device) -> Status, bytes: *mut usize, device: Device) -> Status {
    // SAFETY: the program's own arguments; the driver has accepted the pointer when it succeeds.
    unsafe {
        let status = real(bytes, device);
        if status == SUCCESS
            && let Some((limit, ceiling)) = limit_of(device)
        {
            *bytes = (*bytes).min(limit as usize) + ceiling as usize;
        }
        status
    }
}

/// `cuDeviceTotalMem`, in 32 bits.
pub unsafe fn device_total_v1(real: unsafe extern "C" fn(*mut u32, Device) -> Status, bytes: *mut u32, device: Device) -> Status {
    // SAFETY: as above.
    unsafe {
        let status = real(bytes, device);
        if status == SUCCESS
            && let Some((limit, ceiling)) = limit_of(device)
        {
            *bytes = (*bytes).min(u32::try_from(limit + ceiling).unwrap_or(u32::MAX));
        }
        status
    }
}

/// The limit, and what may lie on the host beside it, in bytes.
fn limit_of(device: Device) -> Option<(u64, u64)> {
    match session::current() {
        session::State::Ready(session) => session.gpu(device).and_then(|gpu| Some((gpu.memory_limit()?, spilled::room(gpu).1))),
        session::State::NotYet | session::State::Refused => None,
    }
}
