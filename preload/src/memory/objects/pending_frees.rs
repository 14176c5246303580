//! Memory that was freed stream-ordered and is still on the device.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32};

use vgpu_region::MAX_GPUS;

use crate::memory::ledger::account;
use crate::session::Gpu;

/// Linear memory that was freed in stream order and may still be on the device, in pages, by GPU.
pub static PENDING: [AtomicU32; MAX_GPUS] = [const { AtomicU32::new(0) }; MAX_GPUS];
/// Set by the first such free.
pub static HAS_FREED: AtomicBool = AtomicBool::new(false);

/// Records a free whose memory stays on the device until a stream reaches it: overhead until a wait, or until NVML no longer lists it.
pub fn record_free(gpu: &Gpu, pages: u32) {
    account::add_overhead(gpu, pages);
    record_pending(gpu, pages);
}

/// Records pages that may stay on the device until a stream reaches their free, and are not charged.
pub fn record_pending(gpu: &Gpu, pages: u32) {
    HAS_FREED.store(true, Relaxed);
    if let Some(freed) = PENDING.get(gpu.place) {
        freed.fetch_add(pages, AcqRel);
    }
}

/// Returns the pages of linear memory that may still be on the device although the account counts them as free.
#[inline]
pub fn pending_frees(gpu: &Gpu) -> u32 {
    PENDING.get(gpu.place).map_or(0, |freed| freed.load(Relaxed))
}
