//! Arrays of this process and their sizes.

use core::sync::atomic::Ordering::Acquire;

use crate::memory::granules::{GRANULE, rounded_pages};
use crate::memory::ledger::account;
use crate::memory::objects::handle_map::Table;
use crate::memory::objects::small_arrays;
use crate::session::Gpu;

/// Arrays by handle: size in bytes in the lower 48 bits, the context's place above.
pub static ARRAYS: Table = Table::new();
/// Bits of the size.
pub const BYTES: u64 = (1 << 48) - 1;

/// Gives back the charge of an array. Returns the pages that must be verified, as small arrays share granules.
pub fn give_back(gpu: &Gpu, bytes: u64) -> u32 {
    if bytes > small_arrays::SMALL {
        account::release(gpu, rounded_pages(bytes, GRANULE));
        return 0;
    }
    let cost = small_arrays::remove(gpu, bytes);
    account::release(gpu, cost);
    cost
}

/// Gives back the arrays of a destroyed context.
pub fn forget_context(gpu: &Gpu, id: u8) {
    for (array, record) in ARRAYS.iter() {
        if (record.load(Acquire) >> 48) as u8 == id
            && let Some(value) = ARRAYS.remove(array)
        {
            give_back(gpu, value & BYTES);
        }
    }
}
