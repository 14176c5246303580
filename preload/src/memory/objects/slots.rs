//! Finds holes between small allocations.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::granules::GRANULE;
use crate::memory::ledger::optimistic::PATIENCE_NS;
use crate::memory::objects::address_map::Kind;
use crate::memory::objects::{address_map, context_table};
use crate::os::lock::{Exclusive, Held};
use vgpu_cuda_abi::cuda::{DevicePtr, SUCCESS};

/// Smallest size that is known not to fit, as of the number of frees in `SEEN`.
static TOO_LARGE: AtomicU64 = AtomicU64::new(u64::MAX);
/// Number of frees at which `TOO_LARGE` was noted.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Number of frees of small allocations.
static FREED: AtomicU64 = AtomicU64::new(0);
/// Address of the last one.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Records the free of a small allocation.
pub fn freed(address: DevicePtr) {
    LAST.store(address, Relaxed);
    FREED.fetch_add(1, Relaxed);
}

/// Held by the thread that fills a hole.
static FILLING: Exclusive = Exclusive::new();

/// Keeps other threads from making or freeing small allocations near the limit. Of two that see the same hole, the second would get a new
/// block from the driver.
pub fn alone() -> Held<'static> {
    FILLING.take(PATIENCE_NS)
}

/// Returns true if a shared block has `bytes` free in a row. `placed` is the address of the last small allocation, behind which there is
/// room most often.
pub fn fit(bytes: u64, placed: DevicePtr) -> bool {
    let freed = FREED.load(Relaxed);
    if SEEN.load(Relaxed) == freed && bytes >= TOO_LARGE.load(Relaxed) {
        return false;
    }
    if has_run_from(placed, bytes) || has_run_from(LAST.load(Relaxed) & !(GRANULE - 1), bytes) {
        return true;
    }
    let mut found = false;
    address_map::for_each(|start, _| found = found || has_run_from(start, bytes));
    if !found {
        SEEN.store(freed, Relaxed);
        TOO_LARGE.store(bytes, Relaxed);
    }
    found
}

/// Returns true if the shared block at `start` has `bytes` free in a row from there on. Walks from allocation to allocation.
fn has_run_from(start: DevicePtr, bytes: u64) -> bool {
    if address_map::get(start).is_none_or(|block| block.kind != Kind::Shared) {
        return false;
    }
    let (mut at, mut run) = (start, 0);
    while at < (start & !(GRANULE - 1)) + GRANULE {
        let (mut base, mut size) = (0, 0);
        // SAFETY: the driver writes into the two variables, or fails for an address that nothing lies at.
        if unsafe { driver::address_range(&raw mut base, &raw mut size, at) } == SUCCESS && size != 0 {
            run = 0;
            at = (base + size as u64).next_multiple_of(context_table::STEP).max(at + context_table::STEP);
        } else {
            (run, at) = (run + context_table::STEP, at + context_table::STEP);
            if run >= bytes {
                return true;
            }
        }
    }
    false
}
