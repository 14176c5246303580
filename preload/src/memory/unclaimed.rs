//! Small allocations for which nothing is claimed, as they fit between others. The driver may take a granule for one all the same: then
//! there is room for it, as whoever takes memory near the limit leaves some (see [`vgpu_region::region::Region::hold_back`]).

use core::mem::ManuallyDrop;

use super::{GRANULE_PAGES, account, holes, near};
use crate::session::{self, Gpu};

/// Such a call under way.
#[must_use]
#[derive(Debug)]
pub struct Unclaimed<'a>(&'a Gpu);

/// Begins one, if the process is not held back from it, no other thread is at it, and there seems to be `room`, which has the hints for
/// itself.
#[inline]
pub fn begin(gpu: &Gpu, room: impl FnOnce() -> bool) -> Option<Unclaimed<'_>> {
    let unclaimed = gpu.charge.begin_unclaimed(|| !near::is_near(gpu)).then(|| Unclaimed(gpu));
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
    let begin = session::monotonic();
    while gpu.charge.makes_unclaimed_call() {
        if session::monotonic().saturating_sub(begin) > holes::PATIENCE {
            return false;
        }
        // SAFETY: the call takes nothing.
        unsafe { libc::sched_yield() };
    }
    true
}
