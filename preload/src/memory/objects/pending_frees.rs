//! Memory that was freed stream-ordered and is still on the device.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32};

use vgpu_region::MAX_GPUS;

use crate::memory::ledger::account;
use crate::session::Gpu;

/// Linear memory that was freed stream-ordered, in pages, by GPU: it is the device's until the stream has come that far.
pub static FREED_LATER: [AtomicU32; MAX_GPUS] = [const { AtomicU32::new(0) }; MAX_GPUS];
/// Set when that first happens: others need not ask.
pub static FREES_LATER: AtomicBool = AtomicBool::new(false);

/// What is given back now is on the device until a stream comes to it: overhead until a wait, or until NVML says that it is gone.
pub fn freed_later(gpu: &Gpu, pages: u32) {
    account::add_overhead(gpu, pages);
    pending(gpu, pages);
}

pub fn pending(gpu: &Gpu, pages: u32) {
    FREES_LATER.store(true, Relaxed);
    if let Some(freed) = FREED_LATER.get(gpu.place) {
        freed.fetch_add(pages, AcqRel);
    }
}

/// Pages of linear memory that may be on the device still although the account takes them for free.
#[inline]
pub fn pending_frees(gpu: &Gpu) -> u32 {
    FREED_LATER.get(gpu.place).map_or(0, |freed| freed.load(Relaxed))
}
