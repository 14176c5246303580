//! When what small arrays take is compared with NVML.

use core::sync::atomic::Ordering::AcqRel;

use crate::memory::ledger::watermark;
use crate::memory::objects::small_arrays::{SMALLS, keep};
use crate::memory::reconcile::overhead;
use crate::session::Gpu;

/// So many pages came or went. Asks NVML near the limit, and before what may be wrong about small arrays is half of what is near it: so they
/// never lead past the limit.
pub fn verify(gpu: &Gpu, pages: u32) {
    let Some(small) = SMALLS.get(gpu.place).filter(|_| pages != 0 && gpu.memory_limit().is_some()) else { return };
    let unverified = small.unverified.fetch_add(u64::from(pages), AcqRel) + u64::from(pages);
    if unverified * 2 <= watermark::margin(gpu) && !watermark::is_near(gpu) {
        return;
    }
    let unverified = small.unverified.swap(0, AcqRel);
    match overhead::reconcile(gpu) {
        Some(true) => {}
        Some(false) => _ = small.unverified.fetch_add(unverified, AcqRel),
        None => keep(gpu, small),
    }
}
