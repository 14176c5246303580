//! Claims, charges and releases in the container's account.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::memory::ledger::changes::together;
use crate::memory::ledger::{changes, watermark};
use crate::session::Gpu;

/// Pages that are in flight for a call that is about to be made. A claim must be settled.
#[must_use]
#[derive(Debug)]
pub struct Claim<'a> {
    /// GPU that is charged.
    gpu: &'a Gpu,
    /// Number of pages.
    pages: u32,
}

/// Claims `pages` if the account has room, without a comparison with NVML.
#[inline]
pub fn begin(gpu: &Gpu, pages: u32) -> Option<Claim<'_>> {
    let limit = gpu.limit_pages();
    let Ok(used) = gpu.charge.charge.begin(&gpu.account.total, pages, limit) else {
        hold_back_near_the_limit(gpu);
        return None;
    };
    let claim = Claim { gpu, pages };
    if watermark::is_near_at(limit, used) && !watermark::have_room(gpu) {
        claim.drop_all();
        return None;
    }
    Some(claim)
}

impl Claim<'_> {
    /// Ends the claim and charges `taken` pages, which may be more than were claimed.
    #[inline]
    pub fn settle(self, taken: u32) {
        self.gpu.charge.charge.finish(&self.gpu.account.total, self.pages, taken);
        if taken > self.pages {
            hold_back_near_the_limit(self.gpu);
        }
    }

    /// Charges all that was claimed.
    #[inline]
    pub fn keep(self) {
        let pages = self.pages;
        self.settle(pages);
    }

    /// Charges all that was claimed as overhead.
    pub fn keep_as_overhead(self) {
        add_overhead(self.gpu, self.pages);
        self.keep();
    }

    /// Charges nothing, as the call failed.
    pub fn drop_all(self) {
        self.settle(0);
    }
}

/// Charges memory that is on the device already, even past the limit.
pub fn charge(gpu: &Gpu, pages: u32) {
    if pages != 0 && gpu.charge.charge.begin(&gpu.account.total, pages, u64::MAX).is_ok() {
        gpu.charge.charge.finish(&gpu.account.total, pages, pages);
        hold_back_near_the_limit(gpu);
    }
}

/// Holds back optimistic allocations near the limit. Called after a charge without a claim, and after a claim that found no room: from then
/// on such an allocation must look at the distance to the limit.
#[cold]
pub fn hold_back_near_the_limit(gpu: &Gpu) {
    if watermark::is_near(gpu) {
        watermark::hold_back(gpu);
    }
}

/// Gives pages back, after the driver has freed them.
#[inline]
pub fn release(gpu: &Gpu, pages: u32) {
    if pages != 0 {
        gpu.charge.charge.release(&gpu.account.total, pages);
    }
}

/// Gives back overhead, at most as much as there is.
pub fn release_overhead(gpu: &Gpu, pages: u32) {
    together(|| release(gpu, take_overhead(gpu, pages)));
}

/// Adds to the overhead: the part of the charge that no allocation call asked for.
pub fn add_overhead(gpu: &Gpu, pages: u32) {
    gpu.charge.overhead.fetch_add(pages, AcqRel);
}

/// Takes pages from the overhead, at most as many as there are. Returns their number.
fn take_overhead(gpu: &Gpu, pages: u32) -> u32 {
    let before = gpu.charge.overhead.fetch_update(AcqRel, Acquire, |there| Some(there.saturating_sub(pages))).unwrap_or(0);
    before.min(pages)
}

/// Charges overhead.
pub fn charge_overhead(gpu: &Gpu, pages: u32) {
    changes::together(|| {
        add_overhead(gpu, pages);
        charge(gpu, pages);
    });
}
