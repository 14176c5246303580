//! Stream-ordered pools: their chunks and the allocations in them.

use std::collections::{BTreeMap, HashMap};

use super::free_ranges::FreeRanges;
use super::queues::Fence;
use crate::handles::Handles;

/// Bytes that a pool takes at a time.
const CHUNK_BYTES: u64 = 32 << 20;
/// Address space of a pool, in bytes.
pub const SPACE_BYTES: u64 = 256 << 30;
pub const ALIGNMENT: u64 = 512;

/// Pools of the process, and the default and current pool of each GPU by ordinal.
#[derive(Default)]
pub struct Pools {
    pub live: Handles<Pool>,
    pub defaults: HashMap<i32, usize>,
    pub current: HashMap<i32, usize>,
}

/// Stream-ordered pool.
pub struct Pool {
    pub ordinal: i32,
    pub base: u64,
    /// Free part of its address space.
    free: FreeRanges,
    /// Number of allocations in each chunk, by index.
    chunks: BTreeMap<u64, u64>,
    pub max_bytes: u64,
    pub release_threshold: u64,
    pub used: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    pub used_high: u64,
    pub reserved_high: u64,
    pub flags: [u32; 4],
    pub is_destroyed: bool,
    /// Fences that pass when all frees have happened.
    pub fences: Vec<Fence>,
}

/// Rounds the size of an allocation as pools do.
pub fn rounded(size: u64) -> u64 {
    size.next_multiple_of(ALIGNMENT)
}

impl Pool {
    /// Creates an empty pool. `max_bytes` 0: no limit.
    pub fn new(ordinal: i32, base: u64, max_bytes: u64) -> Pool {
        let mut free = FreeRanges::default();
        free.add(base, SPACE_BYTES, base..base + SPACE_BYTES);
        Pool {
            ordinal,
            base,
            free,
            chunks: BTreeMap::new(),
            max_bytes: max_bytes.next_multiple_of(CHUNK_BYTES),
            release_threshold: 0,
            used: 0,
            live_allocations: 0,
            used_high: 0,
            reserved_high: 0,
            flags: [1; 4],
            is_destroyed: false,
            fences: Vec::new(),
        }
    }

    /// Returns the bytes of its chunks.
    pub fn reserved(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES
    }

    fn chunks_of(&self, address: u64, size: u64) -> std::ops::RangeInclusive<u64> {
        (address - self.base) / CHUNK_BYTES..=(address - self.base + size - 1) / CHUNK_BYTES
    }

    /// Returns an address for `size` bytes and the bytes of new chunks that the allocation needs.
    pub fn find(&self, size: u64) -> Option<(u64, u64)> {
        let address = self.free.first_fit(size)?;
        let missing = self.chunks_of(address, size).filter(|chunk| !self.chunks.contains_key(chunk)).count() as u64 * CHUNK_BYTES;
        Some((address, missing))
    }

    /// Allocates at an address that `find` returned.
    pub fn take(&mut self, address: u64, size: u64) {
        self.free.take(address, size);
        for chunk in self.chunks_of(address, size) {
            *self.chunks.entry(chunk).or_default() += 1;
        }
        self.live_allocations += 1;
        self.used += size;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved());
    }

    /// Frees an allocation.
    ///
    /// `cuMemFree` does not decrease the used figure, as in the real driver.
    pub fn release(&mut self, address: u64, size: u64, is_stream_ordered: bool) {
        for chunk in self.chunks_of(address, size) {
            if let Some(count) = self.chunks.get_mut(&chunk) {
                *count -= 1;
            }
        }
        self.live_allocations -= 1;
        if is_stream_ordered {
            self.used -= size;
        }
        self.free.add(address, size, self.base..self.base + SPACE_BYTES);
    }

    /// Releases empty chunks down to `keep` bytes. Returns the bytes released.
    pub fn trim(&mut self, keep: u64) -> u64 {
        let empty = self.chunks.iter().filter(|&(_, &count)| count == 0).map(|(&chunk, _)| chunk).collect::<Vec<_>>();
        let before = self.reserved();
        for chunk in empty.into_iter().rev() {
            if self.reserved() < keep.saturating_add(CHUNK_BYTES) {
                break;
            }
            self.chunks.remove(&chunk);
        }
        before - self.reserved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn take(pool: &mut Pool, size: u64) -> u64 {
        let (address, _) = pool.find(rounded(size)).unwrap();
        pool.take(address, rounded(size));
        address
    }

    #[test]
    fn reserved_memory_grows_as_on_an_h200() {
        let mut pool = Pool::new(0, CHUNK_BYTES, 0);
        let sizes = [4096, 4096, MIB, 2 * MIB, 32 * MIB, 32 * MIB, 32 * MIB + 512, 64 * MIB, 100 * MIB, 1024 * MIB, 3 * MIB];
        let seen = sizes.map(|size| {
            take(&mut pool, size);
            pool.reserved() / MIB
        });
        assert_eq!(seen, [32, 32, 32, 32, 64, 96, 128, 192, 288, 1312, 1312]);
    }

    #[test]
    fn trim_releases_only_empty_chunks() {
        let mut pool = Pool::new(0, CHUNK_BYTES, 0);
        let addresses = [10, 10, 30, 10].map(|size| take(&mut pool, size * MIB));
        assert_eq!(pool.reserved(), 2 * CHUNK_BYTES);
        pool.release(addresses[0], 10 * MIB, true);
        pool.release(addresses[1], 10 * MIB, true);
        assert_eq!(pool.trim(0), 0, "the third allocation is in both chunks");
        pool.release(addresses[2], 30 * MIB, true);
        assert_eq!((pool.trim(u64::MAX), pool.trim(0)), (0, CHUNK_BYTES), "trimming to the maximum releases nothing");
        pool.release(addresses[3], 10 * MIB, true);
        assert_eq!(pool.trim(CHUNK_BYTES), 0);
        assert_eq!((pool.trim(0), pool.used), (CHUNK_BYTES, 0));
        assert_eq!(pool.free.first_fit(SPACE_BYTES), Some(CHUNK_BYTES));
    }
}
