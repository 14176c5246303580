//! Memory that comes with the first image in a context whose kernels call `malloc`: some when the image is loaded, and the heap when such a
//! kernel is first launched, which is too late for a refusal.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::memory::granules::GRANULE_PAGES;
use crate::memory::objects::context_limits;
use crate::memory::objects::context_table::{Context, Current};
use vgpu_cuda_abi::cuda::LIMIT_MALLOC_HEAP_SIZE;

/// Pages that a heap of any size takes beyond it (seen on driver 580).
pub const EXTRA: u32 = GRANULE_PAGES;
/// Bytes that loading the first such image takes besides its arrays (seen on an H200 with driver 580). Measured afterwards.
const FOR_FIRST: u64 = 138 << 20;

/// Memory that an image will bring, in pages.
#[derive(Clone, Copy, Debug)]
pub struct Coming<'a> {
    /// Context that the image is loaded into.
    context: &'a Context,
    /// Taken when the image is loaded.
    pub at_once: u32,
    /// Taken at the launch.
    pub later: u32,
}

impl Coming<'static> {
    /// Returns what an image brings that is about to be loaded. `None` if it is not the first, or the context is beyond the table.
    pub fn with_image(current: Current) -> Option<Self> {
        let context = current.context.filter(|context| !context.mallocs.load(Relaxed))?;
        let heap = pages(context_limits::limit_now(LIMIT_MALLOC_HEAP_SIZE)).saturating_add(EXTRA);
        Some(Self::to(context, heap))
    }
}

impl<'a> Coming<'a> {
    /// As [`Coming::with_image`], for a heap of this many pages.
    fn to(context: &'a Context, heap: u32) -> Self {
        let [promised, _] = &context.promised;
        // A heap that was set has been charged.
        let later = if promised.load(Relaxed) == 0 { heap } else { 0 };
        Self { context, at_once: pages(FOR_FIRST), later }
    }

    /// Records that the image is loaded. Returns the pages to charge, at once and for later; none if another thread loaded one during the
    /// call.
    pub fn come(self) -> (u32, u32) {
        if self.context.mallocs.swap(true, AcqRel) {
            return (0, 0);
        }
        let [promised, _] = &self.context.promised;
        let is_ours = self.later != 0 && promised.compare_exchange(0, self.later, AcqRel, Relaxed).is_ok();
        (self.at_once, if is_ours { self.later } else { 0 })
    }

    /// Undoes [`Coming::come`], as the image is unloaded again. Returns the pages charged for later that will not be taken.
    pub fn go(self, later: u32) -> u32 {
        let [promised, _] = &self.context.promised;
        let is_ours = later != 0 && promised.compare_exchange(later, 0, AcqRel, Relaxed).is_ok();
        self.context.mallocs.store(false, Relaxed);
        if is_ours { later } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::objects::context_table::Context;
    use core::sync::atomic::Ordering::Relaxed;
    use vgpu_region::ledger::pages;

    #[test]
    fn the_heap_is_charged_once() {
        let (at_once, heap) = (pages(FOR_FIRST), 2560);
        let context = Context::new();
        let (first, second) = (Coming::to(&context, heap), Coming::to(&context, heap));
        assert_eq!((first.at_once, first.later), (at_once, heap));
        assert_eq!(context.promised[0].load(Relaxed), 0, "nothing is loaded yet");
        assert_eq!((first.come(), second.come()), ((at_once, heap), (0, 0)));
        assert_eq!(context.promised[0].load(Relaxed), heap);
        assert_eq!((first.go(heap), context.promised[0].load(Relaxed)), (heap, 0));
        assert_eq!(second.come(), (at_once, heap), "the next one is the first");

        let context = Context::new();
        let coming = Coming::to(&context, heap);
        context.promised[0].store(7, Relaxed);
        assert_eq!(Coming::to(&context, heap).later, 0);
        assert_eq!((coming.come(), context.promised[0].load(Relaxed)), ((at_once, 0), 7), "another thread has set the heap");
    }
}
