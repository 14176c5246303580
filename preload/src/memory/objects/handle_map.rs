//! A map from handles (of arrays, physical memory, graphs) to words, without locks.
//!
//! Buckets have eight keys. A full bucket overflows into the next ones, and readers probe as far as any writer ever did. A key is inserted
//! by the call that made the object and removed by the call that frees it, so no key is ever in two places.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use crate::os::mmap;

/// Number of buckets.
const BUCKETS: usize = 1 << 14;
/// Number of keys in a bucket.
const WAYS: usize = 8;
/// Largest number of buckets that a writer tries.
const MOST_PROBES: usize = 64;

/// Keys and their values, in one cache line each.
#[repr(C, align(128))]
struct Bucket {
    /// Keys; 0 in a free place, 1 in one that is being written.
    keys: [AtomicU64; WAYS],
    /// The keys' values.
    values: [AtomicU64; WAYS],
}

/// The map. Its 2 MiB are mapped at the first insertion.
pub struct Table {
    /// The buckets; null before the first insertion.
    buckets: AtomicPtr<[Bucket; BUCKETS]>,
    /// Number of buckets that a reader probes: the most that any writer has tried.
    probes: AtomicUsize,
}

impl Table {
    /// Returns an empty map.
    pub const fn new() -> Self {
        Self { buckets: AtomicPtr::new(core::ptr::null_mut()), probes: AtomicUsize::new(1) }
    }

    /// Returns true if no key was ever inserted.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.buckets.load(Relaxed).is_null()
    }

    /// Returns the buckets; `None` before the first insertion.
    fn buckets(&self) -> Option<&[Bucket; BUCKETS]> {
        // SAFETY: null or a mapping that is never removed.
        unsafe { self.buckets.load(Acquire).as_ref() }
    }

    /// Returns the buckets, which are mapped if they are not yet. `None` without memory.
    fn make(&self) -> Option<&[Bucket; BUCKETS]> {
        if self.is_unused() {
            let fresh = mmap::allocate::<[Bucket; BUCKETS]>();
            if !fresh.is_null() && self.buckets.compare_exchange(core::ptr::null_mut(), fresh, AcqRel, Acquire).is_err() {
                // SAFETY: a mapping that no other thread has seen.
                unsafe { libc::munmap(fresh.cast(), size_of::<[Bucket; BUCKETS]>()) };
            }
        }
        self.buckets()
    }

    /// Returns the bucket of a key's probe.
    fn place(key: u64, probe: usize) -> usize {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (mixed as usize).wrapping_add(probe) % BUCKETS
    }

    /// Inserts a key. Returns false if there is no room. A key that is still there belongs to an object that went without a call of its own
    /// (with its context, say); its value is replaced.
    pub fn insert(&self, key: u64, value: u64) -> bool {
        let Some(buckets) = self.make() else { return false };
        if let Some(stale) = self.get(key) {
            stale.store(value, Release);
            return true;
        }
        for probe in 0..MOST_PROBES {
            let Some(bucket) = buckets.get(Self::place(key, probe)) else { return false };
            self.probes.fetch_max(probe + 1, AcqRel);
            for (place, stored) in bucket.keys.iter().zip(&bucket.values) {
                // Key 1 marks a place being written; no handle is 0 or 1.
                if place.load(Relaxed) == 0 && place.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
                    stored.store(value, Relaxed);
                    place.store(key, Release);
                    return true;
                }
            }
        }
        false
    }

    /// Returns the places of a key and of its value.
    fn find(&self, key: u64) -> Option<(&AtomicU64, &AtomicU64)> {
        // Programs free address 0, and 0 and 1 are marks of places.
        let buckets = self.buckets().filter(|_| key > 1)?;
        (0..self.probes.load(Acquire)).find_map(|probe| {
            let bucket = buckets.get(Self::place(key, probe))?;
            bucket.keys.iter().zip(&bucket.values).find(|(place, _)| place.load(Acquire) == key)
        })
    }

    /// Returns the value of a key.
    pub fn get(&self, key: u64) -> Option<&AtomicU64> {
        self.find(key).map(|(_, value)| value)
    }

    /// Removes a key and returns its value, to one caller only.
    pub fn remove(&self, key: u64) -> Option<u64> {
        let (place, stored) = self.find(key)?;
        let value = stored.load(Acquire);
        place.compare_exchange(key, 0, AcqRel, Relaxed).ok().map(|_| value)
    }

    /// Iterates over keys and values; concurrent changes may or may not be seen.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let pairs = self.buckets().into_iter().flatten().flat_map(|bucket| bucket.keys.iter().zip(&bucket.values));
        pairs.map(|(key, value)| (key.load(Acquire), value)).filter(|(key, _)| *key > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn keys_are_found_until_removed() {
        let table = Table::new();
        assert!(table.get(5).is_none() && table.is_unused());
        for key in 2..100_000u64 {
            assert!(table.insert(key << 4, key));
        }
        for key in 2..100_000u64 {
            assert_eq!(table.get(key << 4).map(|value| value.load(Relaxed)), Some(key));
        }
        assert_eq!(table.iter().count(), 99_998);
        for key in 2..100_000u64 {
            assert_eq!(table.remove(key << 4), Some(key));
            assert_eq!(table.remove(key << 4), None);
        }
        assert_eq!(table.iter().count(), 0);
        assert!(table.insert(16, 1) && table.insert(16, 2));
        assert_eq!((table.remove(16), table.remove(16)), (Some(2), None));
        assert!([0, 1].into_iter().all(|no_key| table.get(no_key).is_none() && table.remove(no_key).is_none()));
    }

    #[test]
    fn threads_do_not_lose_each_others_keys() {
        let table = Table::new();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..50_000u64 {
                        let key = 16 + (round % 512) * 4 + thread;
                        assert!(table.insert(key, round));
                        assert_eq!(table.remove(key), Some(round));
                    }
                });
            }
        });
        assert_eq!(table.iter().count(), 0);
    }
}
