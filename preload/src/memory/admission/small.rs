//! Small allocations, which share granules, after a call without a claim.

use crate::loader::driver;
use crate::memory::granules::GRANULE_PAGES;
use crate::memory::ledger::optimistic::Optimistic;
use crate::memory::ledger::{account, optimistic};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::context_table::{Context, Current};
use crate::memory::objects::linear;
use crate::memory::objects::{address_map, slots};
use crate::memory::reconcile::frees;
use vgpu_cuda_abi::cuda::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};

/// Puts a small allocation between others, where that is certain to cost nothing: all frees have passed, and no other thread is about to
/// take the place. `None` if there is no such place, and nothing happened.
#[cold]
pub fn fill_hole(current: Current, bytes: u64, call: impl Fn() -> Status, given: impl Fn() -> (DevicePtr, u64)) -> Option<Status> {
    let Current { gpu, context, .. } = current;
    if !frees::wait_for_frees(gpu) {
        return None;
    }
    let _alone = slots::alone();
    if !optimistic::have_ended(gpu) || !slots::fit(bytes, context.map_or(0, Context::last)) {
        return None;
    }
    match call() {
        SUCCESS => (record(current, given().0, bytes) || charge_or_undo(current, given().0)).then_some(SUCCESS),
        status => Some(status),
    }
}

/// Records a small allocation without a claim. Returns true if it is in a granule that is charged already.
fn record(current: Current, address: DevicePtr, bytes: u64) -> bool {
    let entered = linear::record(address, Block { count: 1, granules: 1, context: current.id, kind: Kind::Shared });
    if let Some(context) = current.context {
        context.placed(address, bytes, entered);
    }
    entered == Entered::Joined
}

/// Charges a new granule for which no room was reserved; or frees it, before the program has seen the address, if there is none. Returns
/// true if it stays.
fn charge_or_undo(current: Current, address: DevicePtr) -> bool {
    if let Some(claim) = account::begin(current.gpu, GRANULE_PAGES) {
        claim.keep();
        return true;
    }
    _ = address_map::leave(address);
    // SAFETY: the allocation was just made, and the program does not know of it.
    unsafe { driver::free(address) };
    if let Some(context) = current.context {
        context.block_freed(address);
    }
    false
}

/// Settles an optimistic allocation at `address`. A new granule is charged. It is freed instead if it is on another GPU than the room that
/// was left for it, and there is none.
pub fn settle(current: Current, address: DevicePtr, bytes: u64, optimistic: Optimistic<'_>) -> Status {
    if record(current, address, bytes) {
        return SUCCESS;
    }
    if optimistic.is_on(current.gpu) {
        optimistic.took_one();
        return SUCCESS;
    }
    if charge_or_undo(current, address) { SUCCESS } else { OUT_OF_MEMORY }
}
