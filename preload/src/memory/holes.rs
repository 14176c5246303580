//! Where a small allocation would fit between others.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::blocks::{self, Kind};
use super::exclusive::{Exclusive, Held};
use super::{GRANULE, known};
use crate::cuda::{DevicePtr, SUCCESS};
use crate::driver;

/// Sizes from this one on are known not to fit, as of the count of frees in `SEEN`.
static TOO_LARGE: AtomicU64 = AtomicU64::new(u64::MAX);
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Small allocations freed so far.
static FREED: AtomicU64 = AtomicU64::new(0);
/// Where the last one was.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A small allocation was freed.
pub fn freed(address: DevicePtr) {
    LAST.store(address, Relaxed);
    FREED.fetch_add(1, Relaxed);
}

/// Held by the thread that is about to fill a hole.
static FILLING: Exclusive = Exclusive::new();
/// For how long to wait for another thread's small allocation, in nanoseconds: much longer than a call of the driver takes, and than its
/// thread may have to wait for a processor.
pub const PATIENCE: u64 = 1_000_000_000;

/// While it is held nobody else of this process makes or frees a small allocation near the limit: of two that see the same hole, the
/// driver would give a new block to the second.
pub fn alone() -> Held<'static> {
    FILLING.take(PATIENCE)
}

/// Whether some shared block has `bytes` free in a row; `placed` is where the last small allocation was, behind which there is room most
/// often.
pub fn fit(bytes: u64, placed: DevicePtr) -> bool {
    let freed = FREED.load(Relaxed);
    if SEEN.load(Relaxed) == freed && bytes >= TOO_LARGE.load(Relaxed) {
        return false;
    }
    if has_run_from(placed, bytes) || has_run_from(LAST.load(Relaxed) & !(GRANULE - 1), bytes) {
        return true;
    }
    let mut found = false;
    blocks::for_each(|start, _| found = found || has_run_from(start, bytes));
    if !found {
        SEEN.store(freed, Relaxed);
        TOO_LARGE.store(bytes, Relaxed);
    }
    found
}

/// Walks a block from an address in it from allocation to allocation, if small ones lie there.
fn has_run_from(start: DevicePtr, bytes: u64) -> bool {
    if blocks::get(start).is_none_or(|block| block.kind != Kind::Shared) {
        return false;
    }
    let (mut at, mut run) = (start, 0);
    while at < (start & !(GRANULE - 1)) + GRANULE {
        let (mut base, mut size) = (0, 0);
        // SAFETY: the driver writes into the two variables, or fails for an address that nothing lies at.
        if unsafe { driver::address_range(&raw mut base, &raw mut size, at) } == SUCCESS && size != 0 {
            run = 0;
            at = (base + size as u64).next_multiple_of(known::STEP).max(at + known::STEP);
        } else {
            (run, at) = (run + known::STEP, at + known::STEP);
            if run >= bytes {
                return true;
            }
        }
    }
    false
}
