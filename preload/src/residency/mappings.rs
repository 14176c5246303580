//! Memory of the program's own virtual memory management that can move: physical memory with one mapping, which is whole.
//!
//! While it is away, the program's handle of it stays valid ([`virtual_handles`]). Calls that name a handle or change a mapping are inside
//! the gate as a whole (`hooks::handles`), so the mappings are the same before and after a move.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::memory::granules::GRANULE;
use crate::memory::objects::address_map::{self, Kind};
use crate::memory::objects::exports::is_exported;
use crate::memory::objects::physical::{HANDLES, MAPPINGS};
use crate::memory::objects::physical_counts::Physical;
use crate::memory::objects::{context_table, virtual_handles};
use crate::residency::block::{Block, access_at};
use crate::session;
use vgpu_cuda_abi::cuda::DevicePtr;

/// Bit of a block's word: it takes part in the move.
const TAKES_PART: u64 = 1 << 61;

/// Chooses the mappings that take part in a move: not those of memory that has another mapping, that an array or a multicast object keeps,
/// that was exported, or that its own device may not use. The memory of all is on the device.
pub fn choose() {
    for (address, handle, word) in virtual_ones() {
        let took_part = word.load(Acquire) & TAKES_PART != 0;
        if can_move(address, handle, took_part) {
            word.fetch_or(TAKES_PART, AcqRel);
        } else {
            word.fetch_and(!TAKES_PART, AcqRel);
        }
    }
}

/// Returns the mappings that were chosen.
pub fn all() -> impl Iterator<Item = Block> {
    virtual_ones().filter(|(.., word)| word.load(Acquire) & TAKES_PART != 0).filter_map(|(address, handle, word)| {
        let physical = HANDLES.get(handle).map(|record| Physical::unpack(record.load(Acquire)))?;
        let gpu = session::ready()?.gpu(physical.device)?;
        let context = context_table::any_on(gpu).unwrap_or(u8::MAX);
        let bytes = (u64::from(physical.granules) * GRANULE) as usize;
        Some(Block { address, bytes, context, device: physical.device, handle, word })
    })
}

/// Returns addresses, handles and words of all mappings of virtual handles.
fn virtual_ones() -> impl Iterator<Item = (DevicePtr, u64, &'static AtomicU64)> {
    MAPPINGS.iter().filter_map(|(address, handle)| {
        let handle = handle.load(Acquire);
        virtual_handles::word(handle).map(|word| (address, handle, word))
    })
}

/// Returns true if the mapping at an address is the only reference to the memory besides handles, and covers it, and can be copied: in some
/// context, with access. The driver is asked for the access once.
fn can_move(address: DevicePtr, handle: u64, has_access: bool) -> bool {
    let Some(physical) = HANDLES.get(handle).map(|record| Physical::unpack(record.load(Acquire))) else { return false };
    let is_whole = address_map::get(address).is_some_and(|block| block.kind == Kind::Mapping && block.granules == physical.granules);
    let has_context = || session::ready().and_then(|session| session.gpu(physical.device)).and_then(context_table::any_on).is_some();
    let has_access = || has_access || access_at(address, physical.device..physical.device + 1) != 0;
    is_whole && physical.mappings == 1 && !is_exported(handle) && has_context() && has_access()
}
