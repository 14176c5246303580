//! Near the limit: there estimates will not do, and NVML is asked before more is taken.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::MAX_GPUS;
use vgpu_region::ledger::pages;

use super::account::{Claim, begin, claim};
use super::exclusive::Exclusive;
use super::refusal::refuse;
use super::{GRANULE_PAGES, array, ordered, shared, truth};
use crate::cuda::{OUT_OF_MEMORY, SUCCESS, Status};
use crate::session::{self, Gpu};

/// Whether so little is left that estimates will not do: less than 64 MiB, or a sixteenth of the limit.
#[inline]
pub fn is_near(gpu: &Gpu) -> bool {
    is_near_at(gpu.limit_pages(), gpu.account.total.pages())
}

/// The same where the limit and what is used of it are known, in pages.
#[inline]
pub const fn is_near_at(limit: u64, used: u64) -> bool {
    limit.saturating_sub(used) < near(limit)
}

/// What is left in pages where it is near.
pub fn margin(gpu: &Gpu) -> u64 {
    near(gpu.limit_pages())
}

const fn near(limit: u64) -> u64 {
    const LEAST: u64 = pages(64 << 20) as u64;
    if limit / 16 > LEAST { limit / 16 } else { LEAST }
}

/// Pages left at which NVML is asked next, by GPU. What is made far from the limit is not measured (streams, graphs, page tables), so near
/// it NVML is asked each time that what is left has halved, from [`is_near`]'s bound on; and each time while something is only estimated.
static LOOK_AT: [AtomicU64; MAX_GPUS] = [const { AtomicU64::new(u64::MAX) }; MAX_GPUS];

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
    } else if is_doubtful(gpu) || ordered::pending_frees(gpu) != 0 || array::has_small(gpu) {
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
    let begin = session::monotonic();
    loop {
        match truth::reconcile(gpu) {
            Some(false) if session::monotonic().saturating_sub(begin) < PATIENCE => {
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
            shared::charge_others(gpu);
            if let Some(at) = LOOK_AT.get(gpu.place).filter(|_| certain) {
                at.store(gpu.left().saturating_sub(u64::from(pages)) / 2, Relaxed);
            }
        }
    })
}

#[inline]
fn has_halved(gpu: &Gpu, left: u64) -> bool {
    LOOK_AT.get(gpu.place).is_some_and(|at| left < at.load(Relaxed))
}

/// From now on the account may be too low: when the limit comes near, NVML is asked.
#[inline]
fn something_unmeasured(gpu: &Gpu) {
    if let Some(at) = LOOK_AT.get(gpu.place).filter(|at| at.load(Relaxed) != u64::MAX) {
        at.store(u64::MAX, Relaxed);
    }
}

/// After the account was compared with NVML; if that was not `certain`, as other threads' calls were under way or NVML cannot tell, with
/// room for what may be on the device besides.
fn begin_after(gpu: &Gpu, pages: u32, certain: bool) -> Option<Claim<'_>> {
    let besides = if certain { 0 } else { u64::from(ordered::pending_frees(gpu)).saturating_add(array::uncertain(gpu)) };
    if gpu.left() >= besides.saturating_add(u64::from(pages)) { begin(gpu, pages) } else { None }
}

/// On which GPUs, a bit for each by its place, this process has been charged for something that costs less than we think. When that
/// goes, too much is given back: near the limit NVML is then asked before anything is taken.
static DOUBTFUL: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(MAX_GPUS <= u32::BITS as usize);

#[inline]
fn is_doubtful(gpu: &Gpu) -> bool {
    DOUBTFUL.load(Relaxed) & (1 << gpu.place) != 0
}

/// NVML was asked: whether it counts less on this GPU than the contexts and allocations that we know of.
pub fn set_doubtful(gpu: &Gpu, less: bool) {
    match (less, is_doubtful(gpu)) {
        (true, false) => _ = DOUBTFUL.fetch_or(1 << gpu.place, Relaxed),
        (false, true) => _ = DOUBTFUL.fetch_and(!(1 << gpu.place), Relaxed),
        _ => {}
    }
}

/// Guards a call that takes a little memory of its own for its purposes (a stream, a module, a graph): far from the limit it just
/// runs; near it, what it takes is measured, and if that went past the limit, undone.
pub fn guard(gpu: &Gpu, call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    if !is_near(gpu) {
        something_unmeasured(gpu);
        return call();
    }
    truth::reconcile(gpu);
    let Ok(room) = claim(gpu, GRANULE_PAGES) else { return OUT_OF_MEMORY };
    let before = truth::device_free();
    let status = call();
    room.drop_all();
    truth::reconcile_after(gpu, before);
    if status == SUCCESS && gpu.account.total.pages() > gpu.limit_pages() {
        undo();
        truth::reconcile(gpu);
        refuse(gpu, GRANULE_PAGES);
        return OUT_OF_MEMORY;
    }
    status
}
