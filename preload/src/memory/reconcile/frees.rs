//! Waiting for memory that was freed stream-ordered.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::loader::driver;
use crate::memory::objects::captures;
use crate::memory::objects::pending_frees::{FREED_LATER, pending_frees};
use crate::memory::reconcile::overhead;
use crate::session::Gpu;

/// Waits for what was freed stream-ordered, if no capture goes on that the wait would spoil. Whether nothing is pending then.
pub fn wait_for_frees(gpu: &Gpu) -> bool {
    let before = pending_frees(gpu);
    if before != 0 && !captures::may_go_on() {
        // SAFETY: waiting is what the driver does when it is out of memory.
        unsafe { driver::context_synchronize() };
        frees_have_passed(gpu, before);
    }
    pending_frees(gpu) == 0
}

/// What was pending before a wait is free. What others freed meanwhile is not.
pub fn frees_have_passed(gpu: &Gpu, before: u32) {
    if overhead::reconcile(gpu) != Some(false)
        && let Some(freed) = FREED_LATER.get(gpu.place)
    {
        _ = freed.fetch_update(AcqRel, Relaxed, |now| Some(now.saturating_sub(before)));
    }
}
