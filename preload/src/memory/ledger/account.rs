//! Taking from and giving back to the container's account.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::memory::ledger::changes::together;
use crate::memory::ledger::{changes, watermark};
use crate::session::Gpu;

/// Pages taken for a call that is about to be made. It has to be settled.
#[must_use]
#[derive(Debug)]
pub struct Claim<'a> {
    gpu: &'a Gpu,
    pages: u32,
}

/// Takes `pages` if the account has room for them, and asks nobody.
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
    /// The call has really taken this many pages.
    #[inline]
    pub fn settle(self, taken: u32) {
        self.gpu.charge.charge.finish(&self.gpu.account.total, self.pages, taken);
        if taken > self.pages {
            hold_back_near_the_limit(self.gpu);
        }
    }

    /// The call has taken what was claimed.
    #[inline]
    pub fn keep(self) {
        let pages = self.pages;
        self.settle(pages);
    }

    /// The call has taken what was claimed, for what no allocation call asked for.
    pub fn keep_as_overhead(self) {
        add_overhead(self.gpu, self.pages);
        self.keep();
    }

    /// The call has failed.
    pub fn drop_all(self) {
        self.settle(0);
    }
}

/// Charges what is there already, whatever the limit.
pub fn charge(gpu: &Gpu, pages: u32) {
    if pages != 0 && gpu.charge.charge.begin(&gpu.account.total, pages, u64::MAX).is_ok() {
        gpu.charge.charge.finish(&gpu.account.total, pages, pages);
        hold_back_near_the_limit(gpu);
    }
}

/// After a charge that nobody was asked for, or a claim that found no room: who takes memory without a claim has to see how far the limit
/// is from now on.
#[cold]
pub fn hold_back_near_the_limit(gpu: &Gpu) {
    if watermark::is_near(gpu) {
        watermark::hold_back(gpu);
    }
}

/// Gives pages back after the driver has.
#[inline]
pub fn release(gpu: &Gpu, pages: u32) {
    if pages != 0 {
        gpu.charge.charge.release(&gpu.account.total, pages);
    }
}

/// Gives back pages that no allocation call asked for, at most what there is of that.
pub fn release_overhead(gpu: &Gpu, pages: u32) {
    together(|| release(gpu, take_overhead(gpu, pages)));
}

/// Adds to the part of the charge that no allocation call asked for.
pub fn add_overhead(gpu: &Gpu, pages: u32) {
    gpu.charge.overhead.fetch_add(pages, AcqRel);
}

/// Takes from that part, at most what is there. Gives what was taken.
fn take_overhead(gpu: &Gpu, pages: u32) -> u32 {
    let before = gpu.charge.overhead.fetch_update(AcqRel, Acquire, |there| Some(there.saturating_sub(pages))).unwrap_or(0);
    before.min(pages)
}

/// Charges what no allocation call asked for.
pub fn charge_overhead(gpu: &Gpu, pages: u32) {
    changes::together(|| {
        add_overhead(gpu, pages);
        charge(gpu, pages);
    });
}
