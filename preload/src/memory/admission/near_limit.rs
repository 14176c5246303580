//! Claims near the limit, after a comparison of the account with NVML.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::ledger::account::{Claim, begin};
use crate::memory::ledger::watermark::{COMPARE_AT, has_halved, is_doubtful, near, something_unmeasured};
use crate::memory::objects::{pending_frees, small_arrays};
use crate::memory::reconcile::{importers, overhead};
use crate::os::clock;
use crate::os::lock::Exclusive;
use crate::session::Gpu;

/// Claims `pages`, without a recount and without a log line if that fails.
#[inline]
pub fn try_claim(gpu: &Gpu, pages: u32) -> Option<Claim<'_>> {
    let claim = begin(gpu, pages)?;
    match comparison(gpu) {
        None => Some(claim),
        Some(needed) => {
            claim.drop_all();
            begin_compared(gpu, pages, needed)
        }
    }
}

/// Comparison of the account with NVML that a claim needs first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Another thread compares, and other claims must wait for it.
    ByAnother,
    /// The memory of this process, which is uncertain.
    Own,
    /// The memory of all processes, as the remainder has halved.
    OfAll,
}

/// Returns the comparison that a claim needs; nearly always `None`.
#[inline]
pub fn comparison(gpu: &Gpu) -> Option<Needed> {
    let limit = gpu.limit_pages();
    let left = limit.saturating_sub(gpu.account.total.pages());
    if left >= near(limit) {
        something_unmeasured(gpu);
        None
    } else if has_halved(gpu, left) {
        Some(Needed::OfAll)
    } else if is_doubtful(gpu) || pending_frees::pending_frees(gpu) != 0 || small_arrays::has_small(gpu) {
        Some(Needed::Own)
    } else {
        COMPARING.is_taken().then_some(Needed::ByAnother)
    }
}

/// Held by the thread that compares the account with NVML. Claims of other threads would make the comparison uncertain.
static COMPARING: Exclusive = Exclusive::new();
/// Longest wait for calls under way, in nanoseconds. Slow calls of the driver are not waited for.
const PATIENCE_NS: u64 = 20_000_000;

/// Claims `pages` after a comparison with NVML and after `more`, which makes room and gets whether the comparison was certain.
pub fn begin_certain(gpu: &Gpu, pages: u32, more: impl FnOnce(bool)) -> Option<Claim<'_>> {
    let _comparing = COMPARING.take(2 * PATIENCE_NS);
    let certain = compare(gpu);
    more(certain);
    begin_after(gpu, pages, certain)
}

/// Compares the account with NVML while no other thread can claim near the limit. Returns true if the account is certain then.
fn compare(gpu: &Gpu) -> bool {
    let begin = clock::monotonic();
    loop {
        match overhead::reconcile(gpu) {
            Some(false) if clock::monotonic().saturating_sub(begin) < PATIENCE_NS => {
                // SAFETY: the call takes nothing.
                unsafe { libc::sched_yield() };
            }
            // It is not where NVML cannot tell.
            compared => return compared == Some(true),
        }
    }
}

/// As [`begin`], after the `needed` comparison.
#[cold]
pub fn begin_compared(gpu: &Gpu, pages: u32, needed: Needed) -> Option<Claim<'_>> {
    if needed == Needed::ByAnother {
        let _comparing = COMPARING.take(2 * PATIENCE_NS);
        return begin(gpu, pages);
    }
    begin_certain(gpu, pages, |certain| {
        if needed == Needed::OfAll {
            importers::charge_others(gpu);
            if let Some(at) = COMPARE_AT.get(gpu.place).filter(|_| certain) {
                at.store(gpu.left().saturating_sub(u64::from(pages)) / 2, Relaxed);
            }
        }
    })
}

/// Claims after a comparison with NVML. If that was not `certain`, because of other threads' calls or because NVML cannot tell, room for
/// memory that may be on the device uncharged must be left.
fn begin_after(gpu: &Gpu, pages: u32, certain: bool) -> Option<Claim<'_>> {
    let uncharged = if certain { 0 } else { u64::from(pending_frees::pending_frees(gpu)).saturating_add(small_arrays::uncertain(gpu)) };
    if gpu.left() >= uncharged.saturating_add(u64::from(pages)) { begin(gpu, pages) } else { None }
}
