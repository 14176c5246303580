//! Small allocations, which share blocks: those for which nothing is claimed, as they fit between others.

use super::account;
use super::blocks::{self, Block, Entered, Kind};
use super::exclusive::Held;
use super::known::{self, Current, Known};
use super::linear::{Given, note};
use super::unclaimed::{self, Unclaimed};
use super::{GRANULE_PAGES, holes, ordered};
use crate::cuda::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};
use crate::driver;

/// Puts a small allocation where there is room for it for certain: nothing freed is on the device still, and no other thread is about to
/// put something there. `None` if there is no such place.
#[cold]
pub fn fill_hole(current: Current, bytes: u64, call: &mut impl FnMut() -> Given) -> Option<Status> {
    let Current { gpu, known, .. } = current;
    if !ordered::wait_for_frees(gpu) {
        return None;
    }
    let _alone = holes::alone();
    if !unclaimed::have_ended(gpu) || !holes::fit(bytes, known.map_or(0, Known::last)) {
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
    _ = blocks::leave(address);
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

/// Near the limit, small allocations are freed one at a time: of two that leave a block at once, the second would give it back before the
/// driver has freed the first.
#[inline]
pub fn one_at_a_time(address: DevicePtr) -> Option<Held<'static>> {
    let block = blocks::get(address).filter(|block| block.kind == Kind::Shared)?;
    known::gpu_of(block.context)?.charge.is_held_back().then(holes::alone)
}
