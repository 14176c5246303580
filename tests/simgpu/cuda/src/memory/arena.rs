//! Addresses. They are real ones: ranges of this process' memory that the kernel backs when somebody touches them.

use std::collections::BTreeMap;

use super::GRANULE;

/// Bytes of address space that are reserved at a time.
const REGION: u64 = 1 << 40;

/// Gives out address ranges in granules, lowest first.
#[derive(Default)]
pub struct Arena {
    /// Start and length of what is free.
    free: BTreeMap<u64, u64>,
}

impl Arena {
    /// A range of `bytes`, a multiple of the granule.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let fits = |free: &BTreeMap<u64, u64>| free.iter().find(|&(_, &length)| length >= bytes).map(|(&start, &length)| (start, length));
        let (start, length) = match fits(&self.free) {
            Some(found) => found,
            None => {
                let region = reserve(bytes.max(REGION))?;
                self.free.insert(region, bytes.max(REGION));
                fits(&self.free)?
            }
        };
        self.free.remove(&start);
        if length > bytes {
            self.free.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Takes a range back; its contents are lost.
    pub fn give(&mut self, start: u64, bytes: u64) {
        discard(start, bytes);
        let (mut start, mut bytes) = (start, bytes);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            (start, bytes) = (before, bytes + length);
        }
        if let Some(length) = self.free.remove(&(start + bytes)) {
            bytes += length;
        }
        self.free.insert(start, bytes);
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
    if cfg!(test) {
        return;
    }
    // SAFETY: the range is one that this module reserved, private and no longer in use.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start as usize), bytes as usize, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_reused_and_join() {
        let mut arena = Arena { free: BTreeMap::from([(GRANULE, 8 * GRANULE)]) };
        let ranges = [1, 2, 1].map(|count| arena.take(count * GRANULE).unwrap());
        assert_eq!(ranges, [GRANULE, 2 * GRANULE, 4 * GRANULE]);
        arena.give(ranges[0], GRANULE);
        arena.give(ranges[2], GRANULE);
        arena.give(ranges[1], 2 * GRANULE);
        assert_eq!(arena.free, BTreeMap::from([(GRANULE, 8 * GRANULE)]));
    }

    #[test]
    fn real_ranges_can_be_written() {
        let mut arena = Arena::default();
        let address = arena.take(GRANULE).unwrap();
        assert_eq!(address % GRANULE, 0);
        let pointer = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the arena gave the range to this test alone.
        unsafe { pointer.write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { pointer.read() }, 7);
    }
}
