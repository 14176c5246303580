//! Linear memory that can move: physical memory, mapped at addresses that stay reserved while it is away.
//!
//! On an H100 an allocation made this way costs what `cuMemAlloc` costs (2 MiB: 134 µs, 64 MiB: 185 µs, with its free).

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::loader::driver;
use crate::memory::granules::GRANULE;
use crate::memory::objects::captures;
use crate::memory::objects::context_table;
use crate::memory::objects::handle_map::Table;
use crate::residency::within::in_context;
use crate::session;
use vgpu_cuda_abi::cuda::{
    ACCESS_READ_WRITE, AccessDesc, AllocationProp, Device, DevicePtr, INVALID_VALUE, LOCATION_DEVICE, Location, OUT_OF_MEMORY, SUCCESS,
    Status, WholeAllocationProp,
};
use vgpu_region::MAX_GPUS;

/// Addresses of the blocks, and the handles of their physical memory; 0 while it is away.
static BLOCKS: Table = Table::new();
/// Addresses of the blocks, and their [`Block`]s.
static DETAILS: Table = Table::new();
/// Number of blocks that were freed and could not be waited for.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);
/// Bit of a word in [`DETAILS`]: the block was freed, and ends once the GPU's work can be waited for.
const IS_GIVEN_UP: u64 = 1 << 63;
/// Bit of a word in [`DETAILS`]: the host has the block's contents, and the device may have them, too.
const IS_STORED: u64 = 1 << 62;

/// A block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// First address.
    pub address: DevicePtr,
    /// Size in bytes, a multiple of [`GRANULE`].
    pub bytes: usize,
    /// Context that it was allocated in, by its place in the table of contexts.
    pub context: u8,
}

impl Block {
    /// Returns size and context in a word.
    fn pack(self) -> u64 {
        (self.bytes as u64 / GRANULE) << 8 | u64::from(self.context)
    }

    /// Returns the block at an address, with size and context from a word.
    fn unpack(address: DevicePtr, word: u64) -> Self {
        Self { address, bytes: (((word & !(IS_GIVEN_UP | IS_STORED)) >> 8) * GRANULE) as usize, context: word as u8 }
    }

    /// Returns the ordinal of its device.
    fn device(self) -> Option<Device> {
        context_table::gpu_of(self.context).map(|gpu| gpu.device)
    }

    /// Unmaps and releases its physical memory. Returns false if the driver does not unmap it.
    ///
    /// # Safety
    /// The program and the GPU use the block no more, or its contents were copied and the gate is closed.
    unsafe fn take_off(self) -> bool {
        let Some(handle) = BLOCKS.get(self.address) else { return true };
        if handle.load(Acquire) == 0 {
            return true;
        }
        // SAFETY: mapped by this library, and the caller's promise.
        unsafe { driver::unmap(self.address, self.bytes) == SUCCESS && driver::physical_release(handle.swap(0, Release)) == SUCCESS }
    }

    /// Takes it off the device, after its contents were copied to the host. A block that the driver does not unmap stays.
    ///
    /// # Safety
    /// The gate is closed, and the copy has ended.
    pub unsafe fn leave(self) {
        // SAFETY: the caller's promise.
        if let Some(word) = DETAILS.get(self.address).filter(|_| unsafe { self.take_off() }) {
            word.fetch_or(IS_STORED, AcqRel);
        }
    }

    /// Creates and maps its physical memory. Returns false if it is there.
    ///
    /// # Errors
    /// The driver's status, and the device.
    pub fn put_back(self) -> Result<bool, (Status, Device)> {
        let (Some(place), Some(device)) = (BLOCKS.get(self.address), self.device()) else { return Ok(false) };
        if place.load(Acquire) != 0 {
            return Ok(false);
        }
        place.store(create_at(self.address, self.bytes, device).map_err(|status| (status, device))?, Release);
        Ok(true)
    }

    /// Returns true if its memory is not on the device.
    pub fn is_away(self) -> bool {
        BLOCKS.get(self.address).is_some_and(|handle| handle.load(Acquire) == 0)
    }

    /// Gives up contents that could not be copied back: a fault tells the program that they are lost; wrong words would not.
    ///
    /// # Safety
    /// The gate is closed.
    pub unsafe fn lose(self) {
        // SAFETY: no call uses the block, and nothing is left in it.
        unsafe { self.take_off() };
    }

    /// Removes its records, its memory and its address.
    ///
    /// # Safety
    /// As [`Block::take_off`].
    unsafe fn end(self) {
        // The one that removes the record ends the block.
        let Some(word) = DETAILS.remove(self.address) else { return };
        if word & IS_GIVEN_UP != 0 {
            GIVEN_UP.fetch_sub(1, AcqRel);
        }
        // SAFETY: the caller's promise; nothing is mapped at the address any more.
        unsafe {
            if self.take_off() {
                BLOCKS.remove(self.address);
                driver::unreserve(self.address, self.bytes);
            }
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
    all().any(|block| (block.address..block.address + block.bytes as u64).contains(&address))
}

/// Returns all blocks. Exact while the gate is closed and no call is inside.
pub fn all() -> impl Iterator<Item = Block> {
    DETAILS.iter().map(|(address, word)| Block::unpack(address, word.load(Acquire)))
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
        let block = Block { address: at, bytes, context };
        let status = match create_at(at, bytes, device) {
            Ok(handle) if BLOCKS.insert(at, handle) => {
                if DETAILS.insert(at, block.pack()) {
                    *address = at;
                    return SUCCESS;
                }
                block.end();
                return OUT_OF_MEMORY;
            }
            Ok(handle) => {
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
    let Some(word) = DETAILS.get(address).filter(|word| word.load(Acquire) & IS_GIVEN_UP == 0) else { return INVALID_VALUE };
    let block = Block::unpack(address, word.load(Acquire));
    match in_context(block.context, wait_like_free).unwrap_or(SUCCESS) {
        // SAFETY: the program gave the block up, and the GPU has finished its work, or the context is gone.
        SUCCESS => unsafe { block.end() },
        OUT_OF_MEMORY => {
            GIVEN_UP.fetch_add(1, AcqRel);
            word.fetch_or(IS_GIVEN_UP, AcqRel);
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
    for (address, word) in DETAILS.iter() {
        let word = word.load(Acquire);
        let block = Block::unpack(address, word);
        if word & IS_GIVEN_UP != 0 && in_context(block.context, captures::wait_for_context) == Some(Some(SUCCESS)) {
            // SAFETY: the program gave the block up, and the GPU has finished its work.
            unsafe { block.end() };
        }
    }
}

/// Frees the blocks of a context that was destroyed, by its place in the table: with it the driver frees only its own allocations.
pub fn forget_context(id: u8) {
    // SAFETY: the context is gone, and the GPU's work in it with it.
    all().filter(|block| block.context == id).for_each(|block| unsafe { block.end() });
}

/// Creates physical memory and maps it at a reserved address, for its own device and for those that can use its memory. Returns its handle.
fn create_at(address: DevicePtr, bytes: usize, device: Device) -> Result<u64, Status> {
    let (mut handle, properties) = (0, WholeAllocationProp { begin: AllocationProp::of_device(device), rest: [0; 2] });
    let mut list = [AccessDesc::default(); MAX_GPUS];
    let mut count = 0;
    let devices = session::ready().map_or(0, |session| session.gpus().len()) as Device;
    for (place, peer) in list.iter_mut().zip((0..devices).filter(|&peer| peer == device || can_use(peer, device))) {
        *place = AccessDesc { location: Location { kind: LOCATION_DEVICE, id: peer }, flags: ACCESS_READ_WRITE };
        count += 1;
    }
    // SAFETY: the driver reads the properties and the list, which has `count` entries, and writes the handle. The address is reserved and
    // free. What was made is undone in reverse.
    unsafe {
        let mut status = driver::physical_create(&raw mut handle, bytes, &raw const properties, 0);
        if status != SUCCESS {
            return Err(status);
        }
        status = driver::map(address, bytes, 0, handle, 0);
        if status == SUCCESS {
            status = driver::set_access(address, bytes, list.as_ptr(), count);
            if status == SUCCESS {
                return Ok(handle);
            }
            driver::unmap(address, bytes);
        }
        driver::physical_release(handle);
        Err(status)
    }
}

/// Returns true if a device can use another's memory.
fn can_use(peer: Device, device: Device) -> bool {
    let mut can = 0;
    // SAFETY: the driver writes one integer.
    unsafe { driver::can_access_peer(&raw mut can, peer, device) == SUCCESS && can != 0 }
}

/// Takes off the device again what has come back to it since the last move out.
///
/// # Safety
/// The gate is closed, and no copy is under way.
pub unsafe fn take_back_off() {
    let stored = DETAILS.iter().filter(|(_, word)| word.load(Acquire) & IS_STORED != 0);
    // SAFETY: the contents are still on the host, and the caller's promise.
    stored.for_each(|(address, word)| _ = unsafe { Block::unpack(address, word.load(Acquire)).take_off() });
}

/// Records that the contents on the host are not the blocks' any more.
pub fn forget_stored() {
    DETAILS.iter().for_each(|(_, word)| _ = word.fetch_and(!IS_STORED, AcqRel));
}
