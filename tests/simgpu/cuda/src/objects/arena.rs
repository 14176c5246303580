//! Device addresses. They are addresses of this process, which the kernel backs when they are touched.

use super::free_ranges::FreeRanges;
use super::granule::GRANULE;

/// Bytes of address space reserved at a time.
const REGION_BYTES: u64 = 1 << 40;

/// Allocator of address ranges in granules, lowest address first.
#[derive(Default)]
pub struct Arena {
    free: FreeRanges,
}

impl Arena {
    /// Takes a range of `bytes`, which must be a multiple of the granule.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        if self.free.first_fit(bytes).is_none() {
            let region = reserve(bytes.max(REGION_BYTES))?;
            self.free.add(region, bytes.max(REGION_BYTES), 0..u64::MAX);
        }
        let start = self.free.first_fit(bytes)?;
        self.free.take(start, bytes);
        Some(start)
    }

    /// Releases a range; its contents are lost.
    pub fn release(&mut self, start: u64, bytes: u64) {
        discard(start, bytes);
        self.free.add(start, bytes, 0..u64::MAX);
    }
}

/// Reserves address space aligned to a granule.
fn reserve(bytes: u64) -> Option<u64> {
    let length = usize::try_from(bytes + GRANULE).ok()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was just mapped; this excludes it from core dumps.
    unsafe { libc::madvise(address, length, libc::MADV_DONTDUMP) };
    Some((address.addr() as u64).next_multiple_of(GRANULE))
}

fn discard(start: u64, bytes: u64) {
    // SAFETY: this module reserved the range; it is private and no longer in use.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start as usize), bytes as usize, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_ranges_are_reused_and_zeroed() {
        let mut arena = Arena::default();
        let ranges = [1, 2, 1].map(|count| arena.take(count * GRANULE).unwrap());
        assert_eq!([ranges[1] - ranges[0], ranges[2] - ranges[1]], [GRANULE, 2 * GRANULE]);
        write(ranges[1], 7);
        arena.release(ranges[0], GRANULE);
        arena.release(ranges[2], GRANULE);
        arena.release(ranges[1], 2 * GRANULE);
        assert_eq!(arena.take(4 * GRANULE), Some(ranges[0]));
        assert_eq!(read(ranges[1]), 0);
        write(ranges[1], 8);
        assert_eq!(read(ranges[1]), 8);
    }

    fn write(address: u64, byte: u8) {
        // SAFETY: the test took the range from its own arena.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address as usize).write(byte) };
    }

    fn read(address: u64) -> u8 {
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address as usize).read() }
    }
}
