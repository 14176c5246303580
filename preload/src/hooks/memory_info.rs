//! The memory that a program sees: its share of the device's.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::PAGE;

use crate::memory::ledger::{spilled, watermark};
use crate::memory::objects::context_table;
use crate::memory::reconcile::dead;
use crate::os::clock;
use crate::session::{self, Gpu};
use vgpu_cuda_abi::cuda::{Device, SUCCESS, Status};

/// Returns free and total bytes under the limit, with what may lie on the host, where the device has `really_free` bytes. `None` without a
/// limit.
pub fn share(gpu: &Gpu, really_free: u64) -> Option<(u64, u64)> {
    let limit = gpu.memory_limit()?.min(gpu.total);
    // Memory of dead processes is free. It is looked for at each call near the limit, else once a second.
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    let second = clock::coarse_second();
    if watermark::is_near(gpu) || LOOKED.load(Relaxed) != second {
        LOOKED.store(second, Relaxed);
        dead::recover(gpu);
    }
    let left = limit.saturating_sub(gpu.account.total.pages().saturating_mul(PAGE));
    // Where memory is overcommitted, others make room for what the limit has left.
    let there = if gpu.is_overcommitted() { u64::MAX } else { really_free };
    let (spill, ceiling) = spilled::room(gpu);
    Some((left.min(there) + spill, limit + ceiling))
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
        let share = match context_table::current() {
            Ok(current) => share(current.gpu, really_free as u64),
            Err(None) => None,
            Err(Some(status)) => return status,
        };
        let (left, limit) = share.unwrap_or((really_free as u64, 0));
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
pub unsafe fn device_total(call: impl FnOnce() -> Status, bytes: *mut usize, device: Device) -> Status {
    // SAFETY: as the caller promises.
    with_limit(call, device, |limit, ceiling| unsafe { *bytes = (*bytes).min(limit as usize) + ceiling as usize })
}

/// `cuDeviceTotalMem`, in 32 bits.
pub unsafe fn device_total_v1(call: impl FnOnce() -> Status, bytes: *mut u32, device: Device) -> Status {
    // SAFETY: as the caller promises.
    with_limit(call, device, |limit, ceiling| unsafe { *bytes = (*bytes).min(u32::try_from(limit + ceiling).unwrap_or(u32::MAX)) })
}

/// After a successful call, calls `apply` with the device's limit and what may lie on the host besides, in bytes, if there is a limit.
fn with_limit(call: impl FnOnce() -> Status, device: Device, apply: impl FnOnce(u64, u64)) -> Status {
    let status = call();
    if status == SUCCESS
        && let session::State::Ready(session) = session::current()
        && let Some(gpu) = session.gpu(device)
        && let Some(limit) = gpu.memory_limit()
    {
        apply(limit, spilled::room(gpu).1);
    }
    status
}
