//! Comparison of the small arrays' charge with NVML.

use core::sync::atomic::Ordering::AcqRel;

use crate::memory::ledger::watermark;
use crate::memory::objects::small_arrays::{SMALL_ARRAYS, keep};
use crate::memory::reconcile::overhead;
use crate::session::Gpu;

/// Records that small arrays took or gave back `pages`. Asks NVML near the limit, and before the unverified pages reach half of the margin
/// near the limit, so small arrays never lead past it.
pub fn verify(gpu: &Gpu, pages: u32) {
    let Some(small) = SMALL_ARRAYS.get(gpu.place).filter(|_| pages != 0 && gpu.memory_limit().is_some()) else { return };
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
