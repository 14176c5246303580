//! Small allocations for which nothing is claimed, as they fit between others. The driver may take a granule for one all the same: then
//! there is room for it, as whoever takes memory near the limit leaves some (see [`vgpu_region::region::Region::hold_back`]).

use core::mem::ManuallyDrop;

use super::{GRANULE_PAGES, account, near};
use crate::session::{self, Gpu};

/// Such a call under way.
#[must_use]
#[derive(Debug)]
pub struct Unclaimed<'a>(&'a Gpu);

/// Begins one, if that is far from the limit and there seems to be `room` for it, and no other thread of the process is at it: then
/// `room` has the hints for itself.
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

/// Whether the limit has room for what such calls may yet take. Those that have not begun are held back.
#[cold]
pub fn have_room(gpu: &Gpu) -> bool {
    let calls = session::ready().map_or(0, |session| session.membership.region.hold_back(gpu.place));
    // What such a call took may just have put the total over the limit, together with a claim that is about to be dropped for it.
    gpu.account.total.pages().saturating_add(calls.saturating_mul(u64::from(GRANULE_PAGES))) <= gpu.limit_pages()
}
