//! Addresses. They are real ones: ranges of this process' memory that the kernel backs when somebody touches them.

use super::GRANULE;
use super::free_ranges::FreeRanges;

/// Bytes of address space that are reserved at a time.
const REGION_BYTES: u64 = 1 << 40;

/// Gives out address ranges in granules, lowest first.
#[derive(Default)]
pub struct Arena {
    free: FreeRanges,
}

impl Arena {
    /// A range of `bytes`, a multiple of the granule.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        if self.free.first_fit(bytes).is_none() {
            let region = reserve(bytes.max(REGION_BYTES))?;
            self.free.add(region, bytes.max(REGION_BYTES), 0..u64::MAX);
        }
        let start = self.free.first_fit(bytes)?;
        self.free.take(start, bytes);
        Some(start)
    }

    /// Takes a range back; its contents are lost.
    pub fn release(&mut self, start: u64, bytes: u64) {
        discard(start, bytes);
        self.free.add(start, bytes, 0..u64::MAX);
    }
}

/// Address space that starts at a granule.
fn reserve(bytes: u64) -> Option<u64> {
    let length = usize::try_from(bytes + GRANULE).ok()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was just mapped; this keeps it out of core dumps.
    unsafe { libc::madvise(address, length, libc::MADV_DONTDUMP) };
    Some((address.addr() as u64).next_multiple_of(GRANULE))
}

fn discard(start: u64, bytes: u64) {
    // SAFETY: the range is one that this module reserved, private and no longer in use.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start as usize), bytes as usize, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_reused_and_their_contents_lost() {
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
        // SAFETY: the arena gave the range to this test alone.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address as usize).write(byte) };
    }

    fn read(address: u64) -> u8 {
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address as usize).read() }
    }
}
