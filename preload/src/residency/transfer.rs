//! Copies of blocks to the host and back.

use core::ffi::c_void;

use crate::loader::driver;
use crate::residency::block::Block;
use crate::residency::blocks;
use crate::residency::store::Store;
use crate::residency::within::{self, in_context};
use vgpu_cuda_abi::cuda::{Device, DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};

/// Bytes that are copied before they are taken off the device, at least. A process that waits for the room can take them while the next
/// are copied: 5 ms at the 50 GB/s that an H100 has moved in one direction. Both at once were not measured.
const BATCH: usize = 256 << 20;

/// What became of a move to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedIn {
    /// All blocks are there.
    All,
    /// Those before the first one that found no room on this device are there.
    NoRoom(Device),
    /// Contents are lost, with the driver's status.
    Failed(Status),
}

/// A copy of all blocks to the host, in batches.
pub struct Outward<'a, I> {
    /// Where they are copied to.
    store: &'a Store,
    /// The contexts in which they are copied.
    contexts: Contexts,
    /// The blocks that come next.
    blocks: I,
    /// The same blocks, from the first one on that [`Self::each_copied`] has not reached.
    copied: I,
    /// Place of the next block in the store.
    offset: usize,
}

/// Begins a copy of all blocks to the host. The blocks must be the same until it ends.
pub fn outward(store: &Store) -> Outward<'_, impl Iterator<Item = Block>> {
    Outward { store, contexts: Contexts::of_blocks(), blocks: blocks::all(), copied: blocks::all(), offset: 0 }
}

/// A copy failed. What its batch has copied counts as not copied.
#[derive(Clone, Copy, Debug)]
pub struct CopyFailed;

impl<I: Iterator<Item = Block>> Outward<'_, I> {
    /// Begins to copy the next batch, except blocks whose contents the host has. Returns the number of its blocks; 0 after the last one.
    ///
    /// # Errors
    /// A copy failed, and none is under way.
    ///
    /// # Safety
    /// The gate is closed until [`Self::wait`] has returned, the GPU's work has ended, and the store is as large as all blocks.
    unsafe fn begin(&mut self) -> Result<usize, CopyFailed> {
        let (mut count, mut bytes) = (0, 0);
        while bytes < BATCH
            && let Some(block) = self.blocks.next()
        {
            if !block.is_stored() {
                // SAFETY: the block's memory, and room for it in the store.
                let to_host = |address, place, bytes| unsafe { driver::copy_to_host(place, address, bytes, core::ptr::null_mut()) };
                if copy(self.store, block, self.offset, to_host) != SUCCESS {
                    // No copy may be under way when the gate opens.
                    _ = self.wait();
                    return Err(CopyFailed);
                }
                bytes += block.bytes;
            }
            (self.offset, count) = (self.offset + block.bytes, count + 1);
        }
        Ok(count)
    }

    /// Waits for the copies that have begun.
    ///
    /// # Errors
    /// One failed.
    fn wait(&self) -> Result<(), CopyFailed> {
        // To the end: no copy may be under way when the gate opens.
        if self.contexts.failing().count() == 0 { Ok(()) } else { Err(CopyFailed) }
    }

    /// Calls `then` with each of the next `count` blocks that were copied.
    fn each_copied(&mut self, count: usize, then: impl FnMut(Block)) {
        self.copied.by_ref().take(count).for_each(then);
    }

    /// Copies the next batch, and records that the host has its contents. Returns false after the last one.
    ///
    /// # Errors
    /// A copy failed, and none is under way.
    ///
    /// # Safety
    /// The gate is closed, the GPU's work has ended, and the store is as large as all blocks.
    pub unsafe fn store_batch(&mut self) -> Result<bool, CopyFailed> {
        // SAFETY: the caller's promise.
        let count = unsafe { self.begin() }?;
        self.wait()?;
        self.each_copied(count, Block::set_stored);
        Ok(count != 0)
    }
}

/// Copies all blocks to the host that it does not have, and takes them off the device: each batch while the next one is copied. Beside a
/// process that comes back, unmapping takes as long as copying. Returns false if a copy failed: its batch and what would come after it stay.
///
/// # Safety
/// As [`Outward::store_batch`].
pub unsafe fn move_out(store: &Store) -> bool {
    let (mut outward, mut copied) = (outward(store), 0);
    loop {
        // SAFETY: the caller's promise.
        let begun = unsafe { outward.begin() };
        // SAFETY: the gate is closed, and the copies of these blocks have ended.
        outward.each_copied(copied, |block| unsafe { block.leave() });
        let Ok(begun) = begun else { return false };
        if outward.wait().is_err() {
            return false;
        }
        if begun == 0 {
            return true;
        }
        copied = begun;
    }
}

/// Puts the blocks that are away back on the device, one after another, and copies their contents. What cannot be copied is given up: a
/// fault tells the program so; wrong words would not.
///
/// # Safety
/// The gate is closed, and the store has the contents of the blocks that are away.
pub unsafe fn move_in(store: &Store) -> MovedIn {
    let contexts = Contexts::of_blocks();
    let (mut offset, mut result) = (0, MovedIn::All);
    for block in blocks::all() {
        let from_host = |address, place: *mut c_void, bytes| {
            // SAFETY: the block is mapped again, and its contents are in the store.
            unsafe { driver::copy_from_host(address, place, bytes, core::ptr::null_mut()) }
        };
        let status = match block.put_back() {
            Ok(true) => copy(store, block, offset, from_host),
            Ok(false) => SUCCESS,
            Err(OUT_OF_MEMORY) => {
                result = MovedIn::NoRoom(block.device);
                break;
            }
            Err(status) => status,
        };
        if status != SUCCESS {
            // Another part of the block may be on its way.
            contexts.failing().for_each(drop);
            // SAFETY: the gate is closed, and no copy is under way.
            unsafe { block.lose() };
            result = MovedIn::Failed(status);
        }
        offset += block.bytes;
    }
    for (id, status) in contexts.failing() {
        // SAFETY: as above; the context is broken.
        blocks::all().filter(|block| block.context == id).for_each(|block| unsafe { block.lose() });
        result = MovedIn::Failed(status);
    }
    result
}

/// Calls `copy` with the parts of a block's addresses, their places in the store from `offset` on, and their lengths, in the block's
/// context. Returns the first status that is not success.
fn copy(store: &Store, block: Block, offset: usize, copy: impl Fn(DevicePtr, *mut c_void, usize) -> Status) -> Status {
    let mut address = block.address;
    let mut statuses = store.parts(offset, block.bytes).map(|(place, bytes)| {
        let status = copy(address, place, bytes);
        address += bytes as u64;
        status
    });
    in_context(block.context, || statuses.find(|status| *status != SUCCESS).unwrap_or(SUCCESS)).unwrap_or_else(|status| status)
}

/// The contexts that have blocks, by their places in the table.
struct Contexts([bool; 256]);

impl Contexts {
    /// Finds them.
    fn of_blocks() -> Self {
        let mut have = [false; 256];
        blocks::all().for_each(|block| have.get_mut(usize::from(block.context)).into_iter().for_each(|has| *has = true));
        Self(have)
    }

    /// Waits for the work in each one. Returns those in which it failed, with the driver's status.
    fn failing(&self) -> impl Iterator<Item = (u8, Status)> {
        let ids = (0..=u8::MAX).zip(&self.0).filter(|&(_, has)| *has).map(|(id, _)| id);
        ids.map(|id| (id, in_context(id, within::synchronize).unwrap_or_else(|status| status))).filter(|&(_, status)| status != SUCCESS)
    }
}
