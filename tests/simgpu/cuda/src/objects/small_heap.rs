//! Heap for the small allocations of one context, which share granules.

use std::collections::BTreeMap;

use super::free_ranges::FreeRanges;
use super::granule::GRANULE;

const ALIGNMENT: u64 = 512;

/// Granules shared by the small allocations of a context.
#[derive(Default)]
pub struct SmallHeap {
    /// Bytes in use in each granule, by its start.
    granules: BTreeMap<u64, u64>,
    free: FreeRanges,
}

fn rounded(size: u64) -> u64 {
    size.next_multiple_of(ALIGNMENT)
}

impl SmallHeap {
    /// Allocates `size` bytes, if a granule has space.
    pub fn take(&mut self, size: u64) -> Option<u64> {
        let size = rounded(size);
        let address = self.free.best_fit(size)?;
        self.free.take(address, size);
        *self.granules.get_mut(&granule_of(address))? += size;
        Some(address)
    }

    /// Adds an empty granule.
    pub fn add(&mut self, granule: u64) {
        self.granules.insert(granule, 0);
        self.free.add(granule, GRANULE, granule..granule + GRANULE);
    }

    /// Frees an allocation. If that empties the granule, removes the granule from the heap and returns it.
    pub fn release(&mut self, address: u64, size: u64) -> Option<u64> {
        let granule = granule_of(address);
        self.free.add(address, rounded(size), granule..granule + GRANULE);
        let used = self.granules.get_mut(&granule)?;
        *used -= rounded(size);
        if *used > 0 {
            return None;
        }
        self.granules.remove(&granule);
        self.free.remove(granule);
        Some(granule)
    }
}

fn granule_of(address: u64) -> u64 {
    address - address % GRANULE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(count: u64) -> SmallHeap {
        let mut heap = SmallHeap::default();
        for number in 1..=count {
            heap.add(number * GRANULE);
        }
        heap
    }

    #[test]
    fn allocations_of_different_sizes_share_a_granule() {
        let mut heap = heap(1);
        let sizes = [4096, 512, 65536, 1 << 20, 700_000, 200_000];
        let addresses = sizes.map(|size| heap.take(size).unwrap() - GRANULE);
        assert_eq!(addresses, [0, 0x1000, 0x1200, 0x11200, 0x0011_1200, 0x001b_c200]);
        assert_eq!(heap.take(400_000), None);
    }

    /// Addresses as on an H200.
    #[test]
    fn allocation_larger_than_half_a_granule_shares_it() {
        let mut heap = heap(1);
        let addresses = [419_338, 1_255_357, 407_618].map(|size| heap.take(size).unwrap() - GRANULE);
        assert_eq!(addresses, [0, 0x66800, 0x0019_9000]);
    }

    #[test]
    fn empty_granule_leaves_the_heap_and_adjacent_granules_do_not_coalesce() {
        let mut heap = heap(2);
        let half = GRANULE / 2;
        let addresses = [(); 4].map(|()| heap.take(half).unwrap());
        assert_eq!(heap.take(1), None);
        assert_eq!(heap.release(addresses[1], half), None);
        assert_eq!(heap.release(addresses[2], half), None);
        assert_eq!(heap.take(half + 1), None, "the free halves are in two granules");
        assert_eq!(heap.release(addresses[0], half), Some(GRANULE));
        assert_eq!(heap.release(addresses[3], half), Some(2 * GRANULE));
        assert_eq!(heap.take(1), None);
    }

    #[test]
    fn freed_space_is_reused() {
        let mut heap = heap(1);
        let addresses = (0..512).map(|_| heap.take(4000).unwrap()).collect::<Vec<_>>();
        assert_eq!(heap.take(1), None);
        for address in addresses.iter().step_by(2) {
            assert_eq!(heap.release(*address, 4000), None);
        }
        for _ in 0..256 {
            heap.take(4096).unwrap();
        }
        assert_eq!(heap.take(1), None);
    }
}
