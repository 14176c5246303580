//! Memory of the program's own virtual memory management that can move: physical memory with one mapping, which is whole.
//!
//! While it is away, the program's handle of it stays valid ([`virtual_handles`]). Calls that name a handle or change a mapping are inside
//! the gate as a whole (`hooks::handles`), so the mappings are the same before and after a move.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::memory::granules::GRANULE;
use crate::memory::objects::address_map::{self, Kind};
use crate::memory::objects::exports::is_exported;
use crate::memory::objects::physical::{HANDLES, MAPPINGS, charged};
use crate::memory::objects::physical_counts::Physical;
use crate::memory::objects::{context_table, virtual_handles};
use crate::residency::block::{Block, has_all_access};
use crate::session;
use vgpu_cuda_abi::cuda::DevicePtr;

/// Bit of a block's word: it takes part in the move.
const TAKES_PART: u64 = 1 << 61;
/// Bits of a block's word: the context in which it is copied, by its place in the table. The same one until the move has ended.
const CONTEXT: u64 = 0xff << 48;

/// Chooses the mappings that take part in a move: not those of memory that has another mapping, that an array or a multicast object keeps,
/// that was exported, or that its own device may not read and write. The memory of all is on the device.
pub fn choose() {
    for (address, handle, word) in virtual_ones() {
        word.fetch_and(!(TAKES_PART | CONTEXT), AcqRel);
        if let Some(context) = context_to_move(address, handle) {
            word.fetch_or(TAKES_PART | u64::from(context) << CONTEXT.trailing_zeros(), AcqRel);
        }
    }
}

/// Returns the mappings that were chosen.
pub fn all() -> impl Iterator<Item = Block> {
    virtual_ones().filter(|(.., word)| word.load(Acquire) & TAKES_PART != 0).filter_map(|(address, handle, word)| {
        let (device, granules) = charged(handle)?;
        let context = ((word.load(Acquire) & CONTEXT) >> CONTEXT.trailing_zeros()) as u8;
        Some(Block { address, bytes: (u64::from(granules) * GRANULE) as usize, context, device, handle, word })
    })
}

/// Returns addresses, handles and words of all mappings of virtual handles.
fn virtual_ones() -> impl Iterator<Item = (DevicePtr, u64, &'static AtomicU64)> {
    MAPPINGS.iter().filter_map(|(address, handle)| {
        let handle = handle.load(Acquire);
        virtual_handles::word(handle).map(|word| (address, handle, word))
    })
}

/// Returns the context in which a mapping can be copied, if it is the only reference to the memory besides handles, and covers it, and its
/// device may read and write it.
fn context_to_move(address: DevicePtr, handle: u64) -> Option<u8> {
    let physical = Physical::unpack(HANDLES.get(handle)?.load(Acquire));
    let block = address_map::get(address).filter(|block| block.kind == Kind::Mapping && block.granules == physical.granules);
    let is_alone = block.is_some() && physical.mappings == 1 && !is_exported(handle);
    let gpu = session::ready()?.gpu(physical.device).filter(|gpu| is_alone && has_all_access(address, gpu.device))?;
    context_table::any_on(gpu)
}
