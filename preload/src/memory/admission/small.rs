//! Small allocations, which share blocks: those for which nothing is claimed, as they fit between others.

use crate::loader::driver;
use crate::memory::granules::GRANULE_PAGES;
use crate::memory::ledger::optimistic::Unclaimed;
use crate::memory::ledger::{account, optimistic};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::context_table::{Current, Known};
use crate::memory::objects::linear::{Given, note};
use crate::memory::objects::{address_map, slots};
use crate::memory::reconcile::frees;
use vgpu_cuda_abi::cuda::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};

/// Puts a small allocation where there is room for it for certain: nothing freed is on the device still, and no other thread is about to
/// put something there. `None` if there is no such place.
#[cold]
pub fn fill_hole(current: Current, bytes: u64, call: &mut impl FnMut() -> Given) -> Option<Status> {
    let Current { gpu, known, .. } = current;
    if !frees::wait_for_frees(gpu) {
        return None;
    }
    let _alone = slots::alone();
    if !optimistic::have_ended(gpu) || !slots::fit(bytes, known.map_or(0, Known::last)) {
        return None;
    }
    match call() {
        Ok((address, _)) if enter_small(current, address, bytes) => Some(SUCCESS),
        Ok((address, _)) => charge_or_undo(current, address).then_some(SUCCESS),
        Err(status) => Some(status),
    }
}

/// Notes a small allocation that nothing was claimed for. Whether it went into a block that is paid for.
fn enter_small(current: Current, address: DevicePtr, bytes: u64) -> bool {
    let block = Block { count: 1, granules: 1, context: current.id, kind: Kind::Shared };
    let entered = note(address, block);
    if let Some(known) = current.known {
        known.placed(address, bytes, entered);
    }
    entered == Entered::Joined
}

/// Charges a new block that nobody has left room for; or gives it back to the driver, before the program has heard of it, if there is none.
/// Whether it stays.
fn charge_or_undo(current: Current, address: DevicePtr) -> bool {
    if let Some(claim) = account::begin(current.gpu, GRANULE_PAGES) {
        claim.keep();
        return true;
    }
    _ = address_map::leave(address);
    // SAFETY: the allocation was just made, and the program does not know of it.
    unsafe { driver::free(address) };
    if let Some(known) = current.known {
        known.block_gone(address);
    }
    false
}

/// A small allocation that nothing was claimed for lies at `address`. If it is in a new block, that is charged; or given back, if it is on
/// another GPU, where nobody has left room for it, and there is none.
pub fn lies_at(current: Current, address: DevicePtr, bytes: u64, unclaimed: Unclaimed<'_>) -> Status {
    if enter_small(current, address, bytes) {
        return SUCCESS;
    }
    if unclaimed.is_on(current.gpu) {
        unclaimed.took_one();
        return SUCCESS;
    }
    if charge_or_undo(current, address) { SUCCESS } else { OUT_OF_MEMORY }
}
