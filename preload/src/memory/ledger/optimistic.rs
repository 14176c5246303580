//! Optimistic allocations: small ones that are made without a claim, as they fit into a granule that is charged already. The driver may
//! still take a new granule for one. Then there is room for it, because claims near the limit leave some (see
//! [`vgpu_region::region::Region::hold_back`]).

use core::mem::ManuallyDrop;

use crate::memory::granules::GRANULE_PAGES;
use crate::memory::ledger::watermark::hold_back;
use crate::memory::ledger::{account, watermark};
use crate::os::clock;
use crate::session::Gpu;

/// An optimistic allocation under way. Dropped, it took nothing.
#[must_use]
#[derive(Debug)]
pub struct Optimistic<'a>(&'a Gpu);

/// Begins one, unless the process is held back, another thread has one under way, or `room`, which has the hints to itself, finds none.
#[inline]
pub fn begin(gpu: &Gpu, room: impl FnOnce() -> bool) -> Option<Optimistic<'_>> {
    let optimistic = gpu.charge.begin_unclaimed(|| !watermark::is_near(gpu)).then(|| Optimistic(gpu));
    optimistic.filter(|_| room())
}

impl Optimistic<'_> {
    /// Charges the granule that the driver took on this GPU.
    pub fn took_one(self) {
        let gpu = ManuallyDrop::new(self).0;
        account::charge(gpu, GRANULE_PAGES);
        gpu.charge.end_unclaimed(true);
    }

    /// Returns true if it was begun on this GPU.
    pub fn is_on(&self, gpu: &Gpu) -> bool {
        self.0.place == gpu.place
    }
}

impl Drop for Optimistic<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.charge.end_unclaimed(false);
    }
}

/// Holds back all processes' optimistic allocations, and waits for this process's own. Returns true if it has ended.
pub fn have_ended(gpu: &Gpu) -> bool {
    hold_back(gpu);
    wait(gpu)
}

/// Waits for another thread's optimistic allocation, if one is under way.
#[inline]
pub fn wait_for_other(gpu: &Gpu) {
    if gpu.charge.makes_unclaimed_call() {
        wait(gpu);
    }
}

/// Returns true if it has ended.
#[cold]
fn wait(gpu: &Gpu) -> bool {
    let begin = clock::monotonic();
    while gpu.charge.makes_unclaimed_call() {
        if clock::monotonic().saturating_sub(begin) > PATIENCE_NS {
            return false;
        }
        // SAFETY: the call takes nothing.
        unsafe { libc::sched_yield() };
    }
    true
}

/// Longest wait for another thread's small allocation, in nanoseconds. Much longer than the driver's call, and than its thread may have to
/// wait for a processor.
pub const PATIENCE_NS: u64 = 1_000_000_000;
