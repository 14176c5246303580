//! Linear memory that can move, which the library makes, and all blocks.
//!
//! On an H100 an allocation made this way costs what `cuMemAlloc` costs (2 MiB: 134 µs, 64 MiB: 185 µs, with its free).

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::loader::driver;
use crate::memory::granules::GRANULE;
use crate::memory::objects::captures;
use crate::memory::objects::context_table;
use crate::memory::objects::handle_map::Table;
use crate::residency::block::{Block, access_of_all, create_at, plain};
use crate::residency::mappings;
use crate::residency::within::in_context;
use vgpu_cuda_abi::cuda::{Device, DevicePtr, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, Status};

/// Addresses of the blocks, and the words with the driver's handles.
static BLOCKS: Table = Table::new();
/// Addresses of the blocks, and their sizes and contexts.
static DETAILS: Table = Table::new();
/// Number of blocks that were freed and could not be waited for.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);
/// Bit of a word in [`DETAILS`]: the block was freed, and ends once the GPU's work can be waited for.
const IS_GIVEN_UP: u64 = 1 << 63;

/// Returns size and context in a word.
fn pack(bytes: usize, context: u8) -> u64 {
    (bytes as u64 / GRANULE) << 8 | u64::from(context)
}

/// Returns the block at an address, with size and context from a word.
fn unpack(address: DevicePtr, details: u64) -> Option<Block> {
    let (bytes, context) = ((((details & !IS_GIVEN_UP) >> 8) * GRANULE) as usize, details as u8);
    let device = context_table::gpu_of(context)?.device;
    Some(Block { address, bytes, context, device, handle: 0, word: BLOCKS.get(address)? })
}

/// Removes a block's records, its memory and its address.
///
/// # Safety
/// As [`Block::take_off`].
unsafe fn end(block: Block) {
    // The one that removes the record ends the block.
    let Some(details) = DETAILS.remove(block.address) else { return };
    if details & IS_GIVEN_UP != 0 {
        GIVEN_UP.fetch_sub(1, AcqRel);
    }
    // SAFETY: the caller's promise; nothing is mapped at the address any more.
    unsafe {
        if block.take_off() {
            BLOCKS.remove(block.address);
            driver::unreserve(block.address, block.bytes);
        }
    }
}

/// Returns true if an allocation that can move begins at `address`.
#[inline]
pub fn is_one(address: DevicePtr) -> bool {
    !BLOCKS.is_unused() && BLOCKS.get(address).is_some()
}

/// Returns true if an address lies in memory that can move.
pub fn contains(address: DevicePtr) -> bool {
    own().any(|block| (block.address..block.address + block.bytes as u64).contains(&address))
}

/// Returns all blocks that move: the library's own, and the program's that were chosen. Exact while the gate is closed and no call is inside.
pub fn all() -> impl Iterator<Item = Block> {
    own().chain(mappings::all())
}

/// Returns the blocks that the library has made.
fn own() -> impl Iterator<Item = Block> {
    DETAILS.iter().filter_map(|(address, details)| unpack(address, details.load(Acquire)))
}

/// Allocates memory that can move, in the context with place `context` in the table, on `device`.
///
/// # Safety
/// `address` is valid for a write.
pub unsafe fn allocate(device: Device, context: u8, address: *mut DevicePtr, bytes: usize) -> Status {
    let Some(bytes) = bytes.checked_next_multiple_of(GRANULE as usize) else { return OUT_OF_MEMORY };
    end_given_up();
    let mut at = 0;
    // SAFETY: the driver writes the address; what was made is undone in reverse. The caller's promise holds for the last write.
    unsafe {
        let status = driver::reserve(&raw mut at, bytes, 0, 0, 0);
        if status != SUCCESS {
            return status;
        }
        let status = match create_at(at, bytes, &plain(device), access_of_all(device)) {
            Ok(handle) => {
                if BLOCKS.insert(at, handle) && DETAILS.insert(at, pack(bytes, context)) {
                    *address = at;
                    return SUCCESS;
                }
                BLOCKS.remove(at);
                driver::unmap(at, bytes);
                driver::physical_release(handle);
                OUT_OF_MEMORY
            }
            Err(status) => status,
        };
        driver::unreserve(at, bytes);
        status
    }
}

/// Waits for the work in the current context, as `cuMemFree` does.
fn wait_like_free() -> Status {
    captures::wait_for_context().unwrap_or_else(|| {
        // The driver's own free waits too (seen on the simulated GPU only for so small a block), and invalidates a capture only if the
        // program's free of its own memory would.
        let mut small = 0;
        // SAFETY: the driver writes the address, which nobody else sees.
        unsafe {
            match driver::allocate(&raw mut small, 1) {
                SUCCESS => driver::free(small),
                status => status,
            }
        }
    })
}

/// Frees the block at `address`. As `cuMemFree` does, it waits for the work in the block's context first. Where that needs memory, because a
/// stream is captured, and there is none, the block ends later.
pub fn free(address: DevicePtr) -> Status {
    let Some(details) = DETAILS.get(address).filter(|details| details.load(Acquire) & IS_GIVEN_UP == 0) else { return INVALID_VALUE };
    let Some(block) = unpack(address, details.load(Acquire)) else { return INVALID_VALUE };
    match in_context(block.context, wait_like_free).unwrap_or(SUCCESS) {
        // SAFETY: the program gave the block up, and the GPU has finished its work, or the context is gone.
        SUCCESS => unsafe { end(block) },
        OUT_OF_MEMORY => {
            GIVEN_UP.fetch_add(1, AcqRel);
            details.fetch_or(IS_GIVEN_UP, AcqRel);
        }
        status => return status,
    }
    SUCCESS
}

/// Returns true if blocks were freed that have not ended.
pub fn are_given_up() -> bool {
    GIVEN_UP.load(Relaxed) != 0
}

/// Ends blocks that were freed while the GPU's work could not be waited for, if it can be now.
pub fn end_given_up() {
    if !are_given_up() {
        return;
    }
    for (address, details) in DETAILS.iter() {
        let details = details.load(Acquire);
        let Some(block) = unpack(address, details) else { continue };
        if details & IS_GIVEN_UP != 0 && in_context(block.context, captures::wait_for_context) == Some(Some(SUCCESS)) {
            // SAFETY: the program gave the block up, and the GPU has finished its work.
            unsafe { end(block) };
        }
    }
}

/// Frees the blocks of a context that was destroyed, by its place in the table: with it the driver frees only its own allocations.
pub fn forget_context(id: u8) {
    // SAFETY: the context is gone, and the GPU's work in it with it.
    own().filter(|block| block.context == id).for_each(|block| unsafe { end(block) });
}

/// Takes off the device again what has come back to it since the last move out.
///
/// # Safety
/// The gate is closed, and no copy is under way.
pub unsafe fn take_back_off() {
    // SAFETY: the contents are still on the host, and the caller's promise.
    all().filter(|block| block.is_stored()).for_each(|block| _ = unsafe { block.take_off() });
}

/// Records that the contents on the host are not the blocks' any more.
pub fn forget_stored() {
    all().for_each(Block::forget_stored);
}
