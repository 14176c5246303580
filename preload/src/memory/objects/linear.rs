//! Linear allocations: recording and freeing them.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::memory::granules::GRANULE;
use crate::memory::ledger::{account, changes, optimistic, spilled};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::{address_map, context_table, slots};
use crate::os::lock::Held;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{DevicePtr, Status};

/// Records an allocation at `address`. A block there of a context that is being destroyed is given back.
#[inline]
pub fn record(address: DevicePtr, block: Block) -> Entered {
    match address_map::enter(address, block) {
        Entered::InsteadOf(stale) => {
            give_back_stale(stale);
            Entered::New
        }
        entered => entered,
    }
}

/// Gives back the charge of a block whose context is being destroyed.
#[cold]
fn give_back_stale(stale: address_map::Packed) {
    if let Some(block) = stale.block()
        && let Some(gpu) = context_table::gpu_of(block.context)
    {
        changes::together(|| give_back(gpu, block));
    }
}

/// Granularity of the driver's pitch in bytes: it takes the next multiple of this (seen on driver 580).
pub const PITCH: u64 = 512;

/// Frees with `call` the allocation that begins at `address`. An unknown address is the driver's to judge.
pub fn free_with(address: DevicePtr, call: impl FnOnce() -> Status) -> Status {
    let _alone = one_at_a_time(address);
    let Some(left) = address_map::leave(address) else { return call() };
    let free = || changes::release(Some(left), call, |left| freed(address, left), |left| address_map::put_back(address, left));
    // Only the last allocation of a block changes the account.
    if left.count == 0 { changes::together(free) } else { free() }
}

/// Settles the free of one allocation of a block, with the count that is left.
#[inline]
fn freed(address: DevicePtr, left: Block) {
    let is_shared = left.kind == Kind::Shared;
    if is_shared {
        slots::freed(address);
        if let Some(context) = context_table::record(left.context) {
            if left.count == 0 { context.block_freed(address) } else { context.freed(address) }
        }
    }
    if left.count == 0
        && let Some(gpu) = context_table::gpu_of(left.context)
    {
        if is_shared {
            // Another thread may just have put an optimistic allocation into the block, and be about to charge it.
            optimistic::wait_for_other(gpu);
        }
        give_back(gpu, left);
    }
}

/// Gives back what a block was charged.
pub fn give_back(gpu: &Gpu, block: Block) {
    let cost = pages(u64::from(block.granules) * GRANULE);
    match block.kind {
        Kind::Shared | Kind::Large | Kind::Mapping => {}
        Kind::Managed => give_back_managed(gpu, cost),
        Kind::Spilled => return spilled::give_back(gpu, cost),
    }
    account::release(gpu, cost);
}

/// Gives back pages of managed memory.
#[cold]
fn give_back_managed(gpu: &Gpu, pages: u32) {
    _ = gpu.charge.managed.fetch_update(AcqRel, Relaxed, |there| Some(there.saturating_sub(pages)));
}

/// Near the limit small allocations are freed one at a time: of two that leave a block at once, the second would give the block back before
/// the driver has freed the first.
#[inline]
fn one_at_a_time(address: DevicePtr) -> Option<Held<'static>> {
    let block = address_map::get(address).filter(|block| block.kind == Kind::Shared)?;
    context_table::gpu_of(block.context)?.charge.is_held_back().then(slots::alone)
}
