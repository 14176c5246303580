//! Small allocations for which nothing is claimed, as they fit between others. The driver may take a granule for one all the same: then
//! there is room for it, as whoever takes memory near the limit leaves some (see [`vgpu_region::region::Region::hold_back`]).

use core::mem::ManuallyDrop;

use crate::memory::granules::GRANULE_PAGES;
use crate::memory::ledger::watermark::hold_back;
use crate::memory::ledger::{account, watermark};
use crate::os::clock;
use crate::session::Gpu;

/// Such a call under way.
#[must_use]
#[derive(Debug)]
pub struct Unclaimed<'a>(&'a Gpu);

/// Begins one, if the process is not held back from it, no other thread is at it, and there seems to be `room`, which has the hints for
/// itself.
#[inline]
pub fn begin(gpu: &Gpu, room: impl FnOnce() -> bool) -> Option<Unclaimed<'_>> {
    let unclaimed = gpu.charge.begin_unclaimed(|| !watermark::is_near(gpu)).then(|| Unclaimed(gpu));
    unclaimed.filter(|_| room())
}

impl Unclaimed<'_> {
    /// The driver took a granule on that GPU, which is charged.
    pub fn took_one(self) {
        let gpu = ManuallyDrop::new(self).0;
        account::charge(gpu, GRANULE_PAGES);
        gpu.charge.end_unclaimed(true);
    }

    /// Whether it was begun on this GPU.
    pub fn is_on(&self, gpu: &Gpu) -> bool {
        self.0.place == gpu.place
    }
}

impl Drop for Unclaimed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.charge.end_unclaimed(false);
    }
}

/// Holds all of them back, and waits for this process's own that has begun. Whether it has ended.
pub fn have_ended(gpu: &Gpu) -> bool {
    hold_back(gpu);
    wait(gpu)
}

/// Waits for the one that another thread has begun.
#[inline]
pub fn let_end(gpu: &Gpu) {
    if gpu.charge.makes_unclaimed_call() {
        wait(gpu);
    }
}

/// Whether it has come to an end.
#[cold]
fn wait(gpu: &Gpu) -> bool {
    let begin = clock::monotonic();
    while gpu.charge.makes_unclaimed_call() {
        if clock::monotonic().saturating_sub(begin) > PATIENCE {
            return false;
        }
        // SAFETY: the call takes nothing.
        unsafe { libc::sched_yield() };
    }
    true
}

/// For how long to wait for another thread's small allocation, in nanoseconds: much longer than a call of the driver takes, and than its
/// thread may have to wait for a processor.
pub const PATIENCE: u64 = 1_000_000_000;
