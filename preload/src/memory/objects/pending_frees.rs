//! Memory that was freed stream-ordered and is still on the device.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32};

use vgpu_region::MAX_GPUS;

use crate::memory::ledger::account;
use crate::session::Gpu;

/// Linear memory that was freed in stream order and may still be on the device, in pages, by GPU.
pub static FREED_LATER: [AtomicU32; MAX_GPUS] = [const { AtomicU32::new(0) }; MAX_GPUS];
/// Set by the first such free.
pub static FREES_LATER: AtomicBool = AtomicBool::new(false);

/// Records a free whose memory stays on the device until a stream reaches it: overhead until a wait, or until NVML no longer lists it.
pub fn freed_later(gpu: &Gpu, pages: u32) {
    account::add_overhead(gpu, pages);
    pending(gpu, pages);
}

/// Records pages that may stay on the device until a stream reaches their free, and are not charged.
pub fn pending(gpu: &Gpu, pages: u32) {
    FREES_LATER.store(true, Relaxed);
    if let Some(freed) = FREED_LATER.get(gpu.place) {
        freed.fetch_add(pages, AcqRel);
    }
}

/// Returns the pages of linear memory that may still be on the device although the account counts them as free.
#[inline]
pub fn pending_frees(gpu: &Gpu) -> u32 {
    FREED_LATER.get(gpu.place).map_or(0, |freed| freed.load(Relaxed))
}
