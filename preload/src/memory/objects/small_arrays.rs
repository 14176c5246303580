//! Small arrays share granules, which they fill one after the other (seen on driver 580); the driver does not tell where. Each is charged
//! its share of a granule. A granule stays while one array is left in it, so NVML is asked for the real size.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::MAX_GPUS;
use vgpu_region::ledger::pages;

use crate::memory::granules::{GRANULE, GRANULE_PAGES, rounded_pages};
use crate::memory::ledger::account;
use crate::session::Gpu;

/// Largest size in bytes of an array that is charged a share of a granule.
pub const SMALL: u64 = GRANULE / 2;

/// The small arrays of this process on one GPU.
pub struct Small {
    /// Sum of their shares, in bytes.
    bytes: AtomicU64,
    /// Highest sum since there were none. May be less than the present sum.
    most: AtomicU64,
    /// Pages charged and given back since NVML was last asked.
    pub unverified: AtomicU64,
    /// Pages charged for granules that may remain, where NVML cannot tell.
    kept: AtomicU32,
}

/// Small arrays by the GPU's place.
pub static SMALL_ARRAYS: [Small; MAX_GPUS] = [const {
    let (bytes, most, unverified) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    Small { bytes, most, unverified, kept: AtomicU32::new(0) }
}; MAX_GPUS];

/// Returns a small array's share of its granule: as many arrays of its size as possible fit into one. Arrays of different sizes may fit
/// worse than their shares, or better.
fn share(bytes: u64) -> u64 {
    GRANULE / (GRANULE / bytes.max(1)).max(1)
}

/// Rounds bytes up to whole granules. Returns pages.
fn granules(bytes: u64) -> u32 {
    rounded_pages(bytes, GRANULE)
}

/// Returns true if there are small arrays on a GPU, so that the charge is an estimate.
#[inline]
pub fn has_small(gpu: &Gpu) -> bool {
    SMALL_ARRAYS.get(gpu.place).is_some_and(|small| small.bytes.load(Relaxed) != 0)
}

/// Returns the pages that the small arrays on a GPU may take beyond their charge: at most twice the highest sum, and a granule.
pub fn uncertain(gpu: &Gpu) -> u64 {
    let Some(small) = SMALL_ARRAYS.get(gpu.place).filter(|_| has_small(gpu)) else { return 0 };
    let now = small.bytes.load(Relaxed);
    let most = u64::from(granules(small.most.load(Relaxed).max(now)));
    (2 * most + u64::from(GRANULE_PAGES)).saturating_sub(u64::from(granules(now)) + u64::from(small.kept.load(Relaxed)))
}

/// Records a new array of `bytes`. Returns the pages to charge.
pub fn add(gpu: &Gpu, bytes: u64) -> u32 {
    let bytes = share(bytes);
    let Some(small) = SMALL_ARRAYS.get(gpu.place) else { return pages(bytes) };
    let before = small.bytes.fetch_add(bytes, AcqRel);
    small.most.fetch_max(before + bytes, AcqRel);
    granules(before + bytes).saturating_sub(granules(before))
}

/// Records the end of an array of `bytes`. Returns the pages to give back.
pub fn remove(gpu: &Gpu, bytes: u64) -> u32 {
    let bytes = share(bytes);
    let Some(small) = SMALL_ARRAYS.get(gpu.place) else { return pages(bytes) };
    let most = small.most.load(Acquire);
    let before = small.bytes.fetch_sub(bytes, AcqRel);
    if before == bytes {
        // Unless arrays were made since.
        _ = small.most.compare_exchange(most, 0, AcqRel, Relaxed);
        account::release_overhead(gpu, small.kept.swap(0, AcqRel));
    }
    granules(before).saturating_sub(granules(before.saturating_sub(bytes)))
}

/// Charges as many granules as there ever were, as NVML cannot tell: each may remain with one array in it.
#[cold]
pub fn keep(gpu: &Gpu, small: &Small) {
    let now = small.bytes.load(Acquire);
    let wanted = if now == 0 { 0 } else { granules(small.most.load(Acquire)).saturating_sub(granules(now)) };
    let before = small.kept.swap(wanted, AcqRel);
    account::charge_overhead(gpu, wanted.saturating_sub(before));
    account::release_overhead(gpu, before.saturating_sub(wanted));
    // The last array may have been destroyed since, and found nothing to give back.
    if small.bytes.load(Acquire) == 0 {
        account::release_overhead(gpu, small.kept.swap(0, AcqRel));
    }
}

/// Clears the charge of [`keep`], which a comparison with NVML has replaced.
pub fn forget_kept(gpu: &Gpu) {
    if let Some(small) = SMALL_ARRAYS.get(gpu.place).filter(|small| small.kept.load(Relaxed) != 0) {
        small.kept.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::granules::GRANULE;
    use crate::memory::granules::GRANULE_PAGES;
    use crate::memory::ledger::account;
    use crate::os::mmap;
    use crate::session::Gpu;
    use core::sync::atomic::Ordering::Relaxed;
    use vgpu_region::MAX_GPUS;

    /// A GPU with a place of its own.
    fn gpu(place: usize) -> Gpu {
        // SAFETY: fresh pages, all zero, which are valid accounts, and never unmapped.
        let (account, charge) = unsafe { (&*mmap::allocate(), &*mmap::allocate()) };
        Gpu { device: 0, uuid: vgpu_region::uuid::Uuid::default(), total: 0, place, limit: None, account, charge }
    }

    #[test]
    fn a_share_is_a_whole_fraction_of_a_granule() {
        assert_eq!([1 << 16, 1 << 20, 700_000, 720_896].map(share), [1 << 16, 1 << 20, 1 << 20, 1 << 20]);
        assert_eq!(share(600_000), GRANULE / 3);
        assert_eq!((share(0), share(GRANULE)), (1, GRANULE));
    }

    #[test]
    fn small_arrays_share_granules() {
        let gpu = gpu(MAX_GPUS - 1);
        let quarter = GRANULE / 4;
        assert_eq!([(); 5].map(|()| add(&gpu, quarter)), [GRANULE_PAGES, 0, 0, 0, GRANULE_PAGES]);
        assert_eq!(uncertain(&gpu), 3 * u64::from(GRANULE_PAGES));
        assert_eq!([(); 3].map(|()| remove(&gpu, quarter)), [GRANULE_PAGES, 0, 0]);
        assert_eq!(uncertain(&gpu), 4 * u64::from(GRANULE_PAGES), "as many granules as before, though one is charged");
        assert_eq!([(); 2].map(|()| remove(&gpu, quarter)), [0, GRANULE_PAGES]);
        assert_eq!((has_small(&gpu), uncertain(&gpu)), (false, 0));
        assert_eq!((add(&gpu, quarter), uncertain(&gpu)), (GRANULE_PAGES, 2 * u64::from(GRANULE_PAGES)), "the count starts again");
    }

    #[test]
    fn without_nvml_granules_stay_charged_while_each_may_hold_an_array() {
        let gpu = gpu(MAX_GPUS - 2);
        let small = &SMALL_ARRAYS[gpu.place];
        let held = |granules: u32| assert_eq!(gpu.charge.charge.held(), granules * GRANULE_PAGES);
        for _ in 0..6 {
            account::charge(&gpu, add(&gpu, SMALL));
        }
        keep(&gpu, small);
        held(3);
        for _ in 0..4 {
            account::release(&gpu, remove(&gpu, SMALL));
        }
        held(1);
        keep(&gpu, small);
        held(3);
        assert_eq!(uncertain(&gpu), 4 * u64::from(GRANULE_PAGES));
        account::charge(&gpu, add(&gpu, SMALL));
        keep(&gpu, small);
        held(3);
        for _ in 0..3 {
            account::release(&gpu, remove(&gpu, SMALL));
        }
        held(0);
        assert_eq!(gpu.charge.overhead.load(Relaxed), 0);
    }
}
