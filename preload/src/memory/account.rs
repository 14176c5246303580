//! Taking from and giving back to the container's account.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use super::{near, refusal, room, spill, unclaimed};
use crate::cuda::{OUT_OF_MEMORY, Status};
use crate::session::Gpu;

/// Pages taken for a call that is about to be made. It has to be settled.
#[must_use]
#[derive(Debug)]
pub struct Claim<'a> {
    gpu: &'a Gpu,
    pages: u32,
}

/// Takes `pages` before the driver is asked.
///
/// # Errors
/// CUDA's out-of-memory code, when the container has no room even after everything was counted anew.
#[inline]
pub fn claim(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    match try_claim(gpu, pages) {
        Some(claim) => Ok(claim),
        None => claim_after_recount(gpu, pages),
    }
}

/// As [`claim`], for memory that can lie on the host instead.
///
/// # Errors
/// [`spill::ELSEWHERE`] where it may, and nothing is said; else as there.
#[inline]
pub fn claim_here(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    match try_claim(gpu, pages) {
        Some(claim) => Ok(claim),
        None => claim_here_after_recount(gpu, pages),
    }
}

#[cold]
fn claim_here_after_recount(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    if spill::ceiling(gpu) == 0 { claim_after_recount(gpu, pages) } else { room::find(gpu, pages, false).ok_or(spill::ELSEWHERE) }
}

/// As [`claim`], but gives up at the first "no" without counting anew and without a word about it.
#[inline]
pub fn try_claim(gpu: &Gpu, pages: u32) -> Option<Claim<'_>> {
    let claim = begin(gpu, pages)?;
    match near::comparison(gpu) {
        None => Some(claim),
        Some(needed) => {
            claim.drop_all();
            near::begin_compared(gpu, pages, needed)
        }
    }
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
    if near::is_near_at(limit, used) && !unclaimed::have_room(gpu) {
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
    if near::is_near(gpu) {
        unclaimed::hold_back(gpu);
    }
}

/// Gives pages back after the driver has.
#[inline]
pub fn release(gpu: &Gpu, pages: u32) {
    if pages != 0 {
        gpu.charge.charge.release(&gpu.account.total, pages);
    }
}

/// Changes under way of what the driver, the charge and the overhead say together, and how many have ended: between two that are equal
/// nobody changed them. Claims are not among them: they are in flight.
static CHANGING: AtomicU32 = AtomicU32::new(0);
static CHANGED: AtomicU32 = AtomicU32::new(0);

/// Makes a change of the driver's, the charge and the overhead that belongs together: meanwhile no comparison with NVML is certain.
#[inline]
pub fn together<T>(change: impl FnOnce() -> T) -> T {
    CHANGING.fetch_add(1, AcqRel);
    let result = change();
    CHANGED.fetch_add(1, AcqRel);
    CHANGING.fetch_sub(1, AcqRel);
    result
}

/// How many changes there were, unless one is under way.
pub fn quiet() -> Option<u32> {
    let changed = CHANGED.load(Acquire);
    (CHANGING.load(Acquire) == 0).then_some(changed)
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

/// The account says no. Before the program hears it: give back what the dead held, let go of what pools no longer have, wait for a
/// context whose cost is still a guess, and ask NVML for the truth.
#[cold]
fn claim_after_recount(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    room::find(gpu, pages, false).ok_or_else(|| {
        refusal::refuse(gpu, pages);
        OUT_OF_MEMORY
    })
}

/// As [`claim`], for a context.
///
/// # Errors
/// As there.
pub fn claim_for_context(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    try_claim(gpu, pages).or_else(|| room::find(gpu, pages, true)).ok_or_else(|| {
        refusal::refuse(gpu, pages);
        OUT_OF_MEMORY
    })
}
