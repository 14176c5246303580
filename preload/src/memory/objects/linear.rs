//! Linear allocations: noting and freeing them.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::memory::granules::GRANULE;
use crate::memory::ledger::{account, changes, optimistic, spilled};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::{address_map, context_table, slots};
use crate::os::lock::Held;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{DevicePtr, SUCCESS, Status};

/// What an allocating call gave: the address and the size in bytes, or the driver's refusal.
pub type Given = Result<(DevicePtr, u64), Status>;

/// Notes an allocation at `address`.
#[inline]
pub fn note(address: DevicePtr, block: Block) -> Entered {
    match address_map::enter(address, block) {
        Entered::InsteadOf(gone) => {
            gone_with_its_context(gone);
            Entered::New
        }
        entered => entered,
    }
}

#[cold]
fn gone_with_its_context(gone: address_map::Packed) {
    if let Some(block) = gone.block()
        && let Some(gpu) = context_table::gpu_of(block.context)
    {
        changes::together(|| give_back(gpu, block));
    }
}

/// The widest pitch that the driver chooses for a width: the next multiple of 512 (seen on driver 580).
pub const PITCH: u64 = 512;

/// Frees with `call` whatever is known at `address`; what is unknown is the driver's business.
pub fn free_with(address: DevicePtr, call: impl FnOnce() -> Status) -> Status {
    let _alone = one_at_a_time(address);
    let Some(left) = address_map::leave(address) else { return call() };
    if left.count == 0 { changes::together(|| free_block(address, left, call)) } else { free_block(address, left, call) }
}

/// Frees with `call` what was taken out of the table.
#[inline]
fn free_block(address: DevicePtr, left: Block, call: impl FnOnce() -> Status) -> Status {
    let status = call();
    if status != SUCCESS {
        address_map::put_back(address, left);
        return status;
    }
    if left.kind == Kind::Shared {
        slots::freed(address);
        if let Some(known) = context_table::record(left.context) {
            if left.count == 0 { known.block_gone(address) } else { known.freed(address) }
        }
    }
    if left.count == 0
        && let Some(gpu) = context_table::gpu_of(left.context)
    {
        if left.kind == Kind::Shared {
            // Another thread may just have put something into the block, unclaimed, and be about to charge it.
            optimistic::let_end(gpu);
        }
        give_back(gpu, left);
    }
    status
}

/// Gives back what a block cost.
pub fn give_back(gpu: &Gpu, block: Block) {
    let cost = pages(u64::from(block.granules) * GRANULE);
    match block.kind {
        Kind::Shared | Kind::Large | Kind::Mapping => {}
        Kind::Managed => give_back_managed(gpu, cost),
        Kind::Spilled => return spilled::give_back(gpu, cost),
    }
    account::release(gpu, cost);
}

#[cold]
fn give_back_managed(gpu: &Gpu, pages: u32) {
    _ = gpu.charge.managed.fetch_update(AcqRel, Relaxed, |there| Some(there.saturating_sub(pages)));
}

/// Near the limit, small allocations are freed one at a time: of two that leave a block at once, the second would give it back before the
/// driver has freed the first.
#[inline]
pub fn one_at_a_time(address: DevicePtr) -> Option<Held<'static>> {
    let block = address_map::get(address).filter(|block| block.kind == Kind::Shared)?;
    context_table::gpu_of(block.context)?.charge.is_held_back().then(slots::alone)
}
