//! The low watermark: near the limit estimates are not exact enough, and NVML is asked before more is taken.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::MAX_GPUS;
use vgpu_region::ledger::pages;

use crate::memory::granules::GRANULE_PAGES;
use crate::session::{self, Gpu};

/// Returns true near the limit: less than 64 MiB is left, or less than a sixteenth of the limit, whichever is more.
#[inline]
pub fn is_near(gpu: &Gpu) -> bool {
    is_near_at(gpu.limit_pages(), gpu.account.total.pages())
}

/// As [`is_near`], for a known limit and use, in pages.
#[inline]
pub const fn is_near_at(limit: u64, used: u64) -> bool {
    limit.saturating_sub(used) < near(limit)
}

/// Returns the distance to the limit, in pages, from which on [`is_near`] is true.
pub fn margin(gpu: &Gpu) -> u64 {
    near(gpu.limit_pages())
}

/// As [`margin`], for a known limit in pages.
pub const fn near(limit: u64) -> u64 {
    const LEAST: u64 = pages(64 << 20) as u64;
    if limit / 16 > LEAST { limit / 16 } else { LEAST }
}

/// Remaining pages, by GPU, at which to ask NVML next. Objects made far from the limit are not measured (streams, graphs, page tables), so
/// near it NVML is asked each time the remainder has halved, and before every claim while something is only estimated.
pub static COMPARE_AT: [AtomicU64; MAX_GPUS] = [const { AtomicU64::new(u64::MAX) }; MAX_GPUS];

/// Returns true if the `left` pages are fewer than those at which to ask NVML next.
#[inline]
pub fn has_halved(gpu: &Gpu, left: u64) -> bool {
    COMPARE_AT.get(gpu.place).is_some_and(|at| left < at.load(Relaxed))
}

/// Marks the account as possibly too low: NVML is asked when the limit is near.
#[inline]
pub fn something_unmeasured(gpu: &Gpu) {
    if let Some(at) = COMPARE_AT.get(gpu.place).filter(|at| at.load(Relaxed) != u64::MAX) {
        at.store(u64::MAX, Relaxed);
    }
}

/// Bits, by the GPU's place, of GPUs on which NVML lists less than the process's objects were charged. When such an object is freed, too
/// much is given back, so near the limit NVML is asked before every claim.
static DOUBTFUL: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(MAX_GPUS <= u32::BITS as usize);

/// Returns true if NVML lists less on this GPU than was charged.
#[inline]
pub fn is_doubtful(gpu: &Gpu) -> bool {
    DOUBTFUL.load(Relaxed) & (1 << gpu.place) != 0
}

/// Records whether NVML lists less on this GPU than the recorded contexts and allocations were charged.
pub fn set_doubtful(gpu: &Gpu, less: bool) {
    match (less, is_doubtful(gpu)) {
        (true, false) => _ = DOUBTFUL.fetch_or(1 << gpu.place, Relaxed),
        (false, true) => _ = DOUBTFUL.fetch_and(!(1 << gpu.place), Relaxed),
        _ => {}
    }
}

/// Holds back optimistic allocations of all processes. Returns the number of those under way.
#[cold]
pub fn hold_back(gpu: &Gpu) -> u64 {
    session::ready().map_or(0, |session| session.membership.region.hold_back(gpu.place))
}

/// Returns true if the limit has room for a granule for each optimistic allocation under way. No more can begin, and those under way get a
/// moment to end: most take one or two microseconds.
#[cold]
pub fn have_room(gpu: &Gpu) -> bool {
    for _ in 0..64 {
        let calls = hold_back(gpu);
        // Such a granule may already have put the total over the limit, together with a claim that is about to be dropped.
        let most = gpu.account.total.pages().saturating_add(calls.saturating_mul(u64::from(GRANULE_PAGES)));
        if most <= gpu.limit_pages() || calls == 0 {
            return most <= gpu.limit_pages();
        }
        (0..16).for_each(|_| core::hint::spin_loop());
    }
    false
}
