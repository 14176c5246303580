//! Index from the address of a driver's function to its entry, for `cuGetProcAddress`.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU16, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Number of places in the table.
const SIZE: usize = 1024;
/// Addresses; null is empty.
static KEYS: [AtomicPtr<c_void>; SIZE] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SIZE];
/// Entries; `u16::MAX` while being written.
static ENTRIES: [AtomicU16; SIZE] = [const { AtomicU16::new(u16::MAX) }; SIZE];

/// Returns the places to probe for an address.
fn places(address: *mut c_void) -> impl Iterator<Item = usize> {
    let start = (address as usize >> 4).wrapping_mul(0x9e37_79b9) >> 8;
    (0..SIZE).map(move |step| start.wrapping_add(step) % SIZE)
}

/// Records the real function of an entry.
pub fn insert(address: *mut c_void, entry: usize) {
    for place in places(address) {
        let (Some(key), Some(value)) = (KEYS.get(place), ENTRIES.get(place)) else { return };
        match key.compare_exchange(core::ptr::null_mut(), address, Relaxed, Relaxed) {
            Ok(_) => return value.store(entry as u16, Release),
            Err(there) if there == address => return,
            Err(_) => {}
        }
    }
}

/// Returns the entry whose real function is at `address`.
pub fn find(address: *mut c_void) -> Option<usize> {
    for place in places(address) {
        match KEYS.get(place)?.load(Relaxed) {
            there if there.is_null() => return None,
            there if there == address => {
                let entry = ENTRIES.get(place)?.load(Acquire);
                return (entry != u16::MAX).then_some(usize::from(entry));
            }
            _ => {}
        }
    }
    None
}
