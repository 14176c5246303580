//! Waits for stream-ordered frees.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::memory::objects::captures;
use crate::memory::objects::pending_frees::{PENDING, pending_frees};
use crate::memory::reconcile::overhead;
use crate::session::Gpu;

/// Waits for pending stream-ordered frees, unless a capture is under way, which the wait would invalidate. Returns true if none is pending
/// then.
pub fn wait_for_frees(gpu: &Gpu) -> bool {
    let before = pending_frees(gpu);
    if before != 0 && captures::wait_for_context().is_some() {
        frees_have_passed(gpu, before);
    }
    pending_frees(gpu) == 0
}

/// Records that the `before` pages that were pending before a wait are free. Later frees are not.
pub fn frees_have_passed(gpu: &Gpu, before: u32) {
    if overhead::reconcile(gpu) != Some(false)
        && let Some(freed) = PENDING.get(gpu.place)
    {
        _ = freed.fetch_update(AcqRel, Relaxed, |now| Some(now.saturating_sub(before)));
    }
}
