//! Handles of the program's physical memory that can move: numbers of the library's own. Behind each is the driver's handle, which changes
//! with a move, and of which the library keeps one reference as long as the memory has a handle or a mapping.
//!
//! A number says what the driver needs to make the memory again.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::loader::driver;
use crate::memory::objects::handle_map::Table;
use vgpu_cuda_abi::cuda::{AllocationProp, Device, WholeAllocationProp};

/// The driver's handles by number, in the lower [`REAL`] bits. The bits above say where the memory is (`residency::block`).
static REALS: Table = Table::new();
/// Number of handles so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Bits of a word that are the driver's handle: an address or a small number.
pub const REAL: u64 = (1 << 48) - 1;
/// Bit of a word: the memory is not on the device, and the lower bits are no handle.
pub const IS_AWAY: u64 = 1 << 63;
/// The upper 16 bits of every number. No address of a program has them.
const TAG: u64 = 0x7667 << 48;
/// Bits of a number that are `requestedHandleTypes`: descriptor, two of Windows, fabric.
const TYPES: u64 = 0xf;
/// Bit of a number for memory that RDMA may use.
const RDMA: u64 = 1 << 4;
/// Bit of `allocFlags` for the same: `gpuDirectRDMACapable`.
const RDMA_FLAG: u64 = 1 << 8;
/// Place of the count in a number.
const COUNT_PLACE: u32 = 8;

/// Returns a new number for a handle that the driver has just given; `None` if the memory is of a kind that the number cannot describe, or
/// there is no room for a record.
pub fn make(real: u64, properties: &WholeAllocationProp) -> Option<u64> {
    let (types, [metadata, flags]) = (u64::from(properties.begin.handle_types as u32), properties.rest);
    let is_usual = properties.begin.kind == AllocationProp::of_device(0).kind && metadata == 0;
    if !is_usual || types & !TYPES != 0 || flags & !RDMA_FLAG != 0 || real & !REAL != 0 {
        return None;
    }
    let count = (COUNT.fetch_add(1, Relaxed) << COUNT_PLACE) & REAL;
    let number = TAG | count | types | if flags != 0 { RDMA } else { 0 };
    REALS.insert(number, real).then_some(number)
}

/// Returns true if a handle is such a number.
pub fn is_one(handle: u64) -> bool {
    handle & !REAL == TAG
}

/// Returns the driver's handle of a handle of the program's; 0 for a number of memory that has ended, or is lost. For calls inside the gate.
pub fn real(handle: u64) -> u64 {
    if is_one(handle) { word(handle).map_or(0, |word| there(word.load(Acquire))) } else { handle }
}

/// Returns the driver's handle in a word; 0 while there is none.
fn there(word: u64) -> u64 {
    if word & IS_AWAY == 0 { word & REAL } else { 0 }
}

/// Returns the word of a number.
pub fn word(number: u64) -> Option<&'static AtomicU64> {
    if is_one(number) { REALS.get(number) } else { None }
}

/// Returns the number of the memory that has a driver's handle.
pub fn number_of(real: u64) -> Option<u64> {
    REALS.iter().find(|(_, word)| word.load(Acquire) & (REAL | IS_AWAY) == real).map(|(number, _)| number)
}

/// Returns the properties of a number's memory on a device.
pub fn properties(number: u64, device: Device) -> WholeAllocationProp {
    let begin = AllocationProp { handle_types: (number & TYPES) as i32, ..AllocationProp::of_device(device) };
    WholeAllocationProp { begin, rest: [0, if number & RDMA != 0 { RDMA_FLAG } else { 0 }] }
}

/// Ends a number whose memory nothing refers to any more. Other handles are the driver's to end.
pub fn end(handle: u64) {
    let word = Some(handle).filter(|&handle| is_one(handle)).and_then(|number| REALS.remove(number));
    if let Some(real) = word.map(there).filter(|&real| real != 0) {
        // SAFETY: the library's own reference, and the last one.
        unsafe { driver::physical_release(real) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_describes_its_memory() {
        let mut of = AllocationProp::of_device(3);
        of.handle_types = 9;
        let [plain, rdma] = [0, RDMA_FLAG].map(|flag| make(0x7f00_0000_1230, &WholeAllocationProp { begin: of, rest: [0, flag] }).unwrap());
        assert!(is_one(plain) && is_one(rdma) && plain != rdma && !is_one(0x7f00_0000_1230));
        assert_eq!((real(plain), real(5), real(TAG)), (0x7f00_0000_1230, 5, 0));
        let seen = properties(rdma, 3);
        assert_eq!((seen.begin.handle_types, seen.begin.location.id, seen.rest), (9, 3, [0, RDMA_FLAG]));
        assert_eq!(properties(plain, 3).rest, [0, 0]);
    }

    #[test]
    fn unusual_memory_has_no_number() {
        let usual = WholeAllocationProp { begin: AllocationProp::of_device(0), rest: [0; 2] };
        let types = AllocationProp { handle_types: 0x10, ..usual.begin };
        let compressed = WholeAllocationProp { rest: [0, 1], ..usual };
        for (real, properties) in [(1, compressed), (1, WholeAllocationProp { begin: types, ..usual }), (1 << 48, usual)] {
            assert_eq!(make(real, &properties), None);
        }
    }
}
