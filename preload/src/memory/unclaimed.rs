//! Small allocations for which nothing is claimed, as they fit between others. The driver may take a granule for one all the same: then
//! there is room for it, as whoever takes memory near the limit leaves some for each (see [`vgpu_region::region::Region::unclaimed`]).

use super::{GRANULE_PAGES, near};
use crate::session::{self, Gpu};

/// Such a call under way.
#[must_use]
#[derive(Debug)]
pub struct Unclaimed<'a>(&'a Gpu);

/// Begins one far from the limit, if there seems to be `room` for it.
#[inline]
pub fn begin(gpu: &Gpu, room: impl FnOnce() -> bool) -> Option<Unclaimed<'_>> {
    // Asked before, too: near the limit each count keeps others from what little is left.
    let begun = !near::is_near(gpu) && room() && gpu.charge.begin_unclaimed(|| !near::is_near(gpu));
    begun.then(|| Unclaimed(gpu))
}

impl Unclaimed<'_> {
    /// Whether it was begun on this GPU.
    pub fn is_on(&self, gpu: &Gpu) -> bool {
        self.0.place == gpu.place
    }
}

impl Drop for Unclaimed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.charge.end_unclaimed();
    }
}

/// Whether the limit has room for what such calls may yet take.
#[cold]
pub fn have_room(gpu: &Gpu) -> bool {
    let calls = session::ready().map_or(0, |session| session.membership.region.unclaimed(gpu.place));
    // What such a call took may just have put the total over the limit, together with a claim that is about to be dropped for it.
    gpu.account.total.pages().saturating_add(calls.saturating_mul(u64::from(GRANULE_PAGES))) <= gpu.limit_pages()
}
