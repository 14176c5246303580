//! Claims near the limit, after a comparison of the account with NVML.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::ledger::account::{Claim, begin};
use crate::memory::ledger::watermark::{LOOK_AT, has_halved, is_doubtful, near, something_unmeasured};
use crate::memory::objects::{pending_frees, small_arrays};
use crate::memory::reconcile::{importers, overhead};
use crate::os::clock;
use crate::os::lock::Exclusive;
use crate::session::Gpu;

/// As [`claim`], but gives up at the first "no" without counting anew and without a word about it.
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

/// Whether the account has to be compared with NVML before more is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Another thread is at it, and wants the others to stand still.
    ByAnother,
    /// What this process holds is uncertain.
    Own,
    /// What is left has halved: what all hold.
    OfAll,
}

/// Which comparison is needed before more is taken; `None` nearly always.
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

/// Held by the thread that compares the account with NVML: while others of this process take memory, it would be uncertain.
static COMPARING: Exclusive = Exclusive::new();
/// In nanoseconds: some calls of the driver take long, and are not waited for.
const PATIENCE: u64 = 20_000_000;

/// Takes `pages` after a comparison with NVML and what `more` does then to make room; it is told whether the comparison was certain.
pub fn begin_certain(gpu: &Gpu, pages: u32, more: impl FnOnce(bool)) -> Option<Claim<'_>> {
    let _comparing = COMPARING.take(2 * PATIENCE);
    let certain = compare(gpu);
    more(certain);
    begin_after(gpu, pages, certain)
}

/// Compares the account with NVML while no other thread begins to take memory near the limit. Whether it is certain then.
fn compare(gpu: &Gpu) -> bool {
    let begin = clock::monotonic();
    loop {
        match overhead::reconcile(gpu) {
            Some(false) if clock::monotonic().saturating_sub(begin) < PATIENCE => {
                // SAFETY: the call takes nothing.
                unsafe { libc::sched_yield() };
            }
            // Nor is it where NVML cannot tell.
            compared => return compared == Some(true),
        }
    }
}

/// As [`begin`], after the comparison that is needed.
#[cold]
pub fn begin_compared(gpu: &Gpu, pages: u32, needed: Needed) -> Option<Claim<'_>> {
    if needed == Needed::ByAnother {
        let _comparing = COMPARING.take(2 * PATIENCE);
        return begin(gpu, pages);
    }
    begin_certain(gpu, pages, |certain| {
        if needed == Needed::OfAll {
            importers::charge_others(gpu);
            if let Some(at) = LOOK_AT.get(gpu.place).filter(|_| certain) {
                at.store(gpu.left().saturating_sub(u64::from(pages)) / 2, Relaxed);
            }
        }
    })
}

/// After the account was compared with NVML; if that was not `certain`, as other threads' calls were under way or NVML cannot tell, with
/// room for what may be on the device besides.
fn begin_after(gpu: &Gpu, pages: u32, certain: bool) -> Option<Claim<'_>> {
    let besides = if certain { 0 } else { u64::from(pending_frees::pending_frees(gpu)).saturating_add(small_arrays::uncertain(gpu)) };
    if gpu.left() >= besides.saturating_add(u64::from(pages)) { begin(gpu, pages) } else { None }
}
