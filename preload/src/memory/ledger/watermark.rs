//! Near the limit: there estimates will not do, and NVML is asked before more is taken.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::MAX_GPUS;
use vgpu_region::ledger::pages;

use crate::memory::granules::GRANULE_PAGES;
use crate::session;
use crate::session::Gpu;

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

pub const fn near(limit: u64) -> u64 {
    const LEAST: u64 = pages(64 << 20) as u64;
    if limit / 16 > LEAST { limit / 16 } else { LEAST }
}

/// Pages left at which NVML is asked next, by GPU. What is made far from the limit is not measured (streams, graphs, page tables), so near
/// it NVML is asked each time that what is left has halved, from [`is_near`]'s bound on; and each time while something is only estimated.
pub static LOOK_AT: [AtomicU64; MAX_GPUS] = [const { AtomicU64::new(u64::MAX) }; MAX_GPUS];

#[inline]
pub fn has_halved(gpu: &Gpu, left: u64) -> bool {
    LOOK_AT.get(gpu.place).is_some_and(|at| left < at.load(Relaxed))
}

/// From now on the account may be too low: when the limit comes near, NVML is asked.
#[inline]
pub fn something_unmeasured(gpu: &Gpu) {
    if let Some(at) = LOOK_AT.get(gpu.place).filter(|at| at.load(Relaxed) != u64::MAX) {
        at.store(u64::MAX, Relaxed);
    }
}

/// On which GPUs, a bit for each by its place, this process has been charged for something that costs less than we think. When that
/// goes, too much is given back: near the limit NVML is then asked before anything is taken.
static DOUBTFUL: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(MAX_GPUS <= u32::BITS as usize);

#[inline]
pub fn is_doubtful(gpu: &Gpu) -> bool {
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

/// Holds back those that have not begun, and tells how many have.
#[cold]
pub fn hold_back(gpu: &Gpu) -> u64 {
    session::ready().map_or(0, |session| session.membership.region.hold_back(gpu.place))
}

/// Whether the limit has room for what such calls may yet take. Those that have not begun are held back, and those that have are given a
/// moment to end: most take a microsecond or two.
#[cold]
pub fn have_room(gpu: &Gpu) -> bool {
    for _ in 0..64 {
        let calls = hold_back(gpu);
        // What such a call took may just have put the total over the limit, together with a claim that is about to be dropped for it.
        let most = gpu.account.total.pages().saturating_add(calls.saturating_mul(u64::from(GRANULE_PAGES)));
        if most <= gpu.limit_pages() || calls == 0 {
            return most <= gpu.limit_pages();
        }
        (0..16).for_each(|_| core::hint::spin_loop());
    }
    false
}
