//! What comes with the first image in a context whose kernels call `malloc`: memory when it is loaded, and the heap when such a kernel is
//! first launched, which nobody could refuse well then.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::memory::granules::GRANULE_PAGES;
use crate::memory::objects::context_limits;
use crate::memory::objects::context_table::{Current, Known};
use vgpu_cuda_abi::cuda::LIMIT_MALLOC_HEAP_SIZE;

/// What a heap takes beyond its size, whatever that is (seen on driver 580).
pub const EXTRA: u32 = GRANULE_PAGES;
/// What loading the first such image takes beside its arrays (seen on driver 580, on an H200). It is measured afterwards.
const FOR_FIRST: u64 = 138 << 20;

/// It, before it is there; in pages.
#[derive(Clone, Copy, Debug)]
pub struct Coming<'a> {
    known: &'a Known,
    /// With the image.
    pub at_once: u32,
    /// With the launch.
    pub later: u32,
}

impl Coming<'static> {
    /// With an image that is about to be loaded into a context. `None` if it is not the first, or nobody could tell later.
    pub fn with_image(current: Current) -> Option<Self> {
        let known = current.known.filter(|known| !known.mallocs.load(Relaxed))?;
        let heap = pages(context_limits::limit_now(LIMIT_MALLOC_HEAP_SIZE)).saturating_add(EXTRA);
        Some(Self::to(known, heap))
    }
}

impl<'a> Coming<'a> {
    /// Where the heap would take so many pages.
    fn to(known: &'a Known, heap: u32) -> Self {
        let [promised, _] = &known.promised;
        // A heap that was set has been charged.
        let later = if promised.load(Relaxed) == 0 { heap } else { 0 };
        Self { known, at_once: pages(FOR_FIRST), later }
    }

    /// The image is there. What of it has to be charged now: nothing if another thread has loaded one meanwhile.
    pub fn come(self) -> (u32, u32) {
        if self.known.mallocs.swap(true, AcqRel) {
            return (0, 0);
        }
        let [promised, _] = &self.known.promised;
        let is_ours = self.later != 0 && promised.compare_exchange(0, self.later, AcqRel, Relaxed).is_ok();
        (self.at_once, if is_ours { self.later } else { 0 })
    }

    /// What came is not to be: the image was the first, and is unloaded again. Gives what nobody will take later.
    pub fn go(self, later: u32) -> u32 {
        let [promised, _] = &self.known.promised;
        let is_ours = later != 0 && promised.compare_exchange(later, 0, AcqRel, Relaxed).is_ok();
        self.known.mallocs.store(false, Relaxed);
        if is_ours { later } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::objects::context_table::Known;
    use core::sync::atomic::Ordering::Relaxed;
    use vgpu_region::ledger::pages;

    #[test]
    fn it_comes_once_and_a_heap_that_was_set_is_not_charged_twice() {
        let (at_once, heap) = (pages(FOR_FIRST), 2560);
        let known = Known::new();
        let (first, second) = (Coming::to(&known, heap), Coming::to(&known, heap));
        assert_eq!((first.at_once, first.later), (at_once, heap));
        assert_eq!(known.promised[0].load(Relaxed), 0, "nothing has come yet");
        assert_eq!((first.come(), second.come()), ((at_once, heap), (0, 0)));
        assert_eq!(known.promised[0].load(Relaxed), heap);
        assert_eq!((first.go(heap), known.promised[0].load(Relaxed)), (heap, 0));
        assert_eq!(second.come(), (at_once, heap), "the next one is the first");

        let known = Known::new();
        let coming = Coming::to(&known, heap);
        known.promised[0].store(7, Relaxed);
        assert_eq!(Coming::to(&known, heap).later, 0);
        assert_eq!((coming.come(), known.promised[0].load(Relaxed)), ((at_once, 0), 7), "set by another thread meanwhile");
    }
}
