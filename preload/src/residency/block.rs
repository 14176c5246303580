//! Memory that can move: physical memory, mapped at an address that stays reserved while it is away.

use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use crate::loader::driver;
use crate::memory::objects::virtual_handles::{self, IS_AWAY, REAL};
use crate::session;
use vgpu_cuda_abi::cuda::{
    ACCESS_READ_WRITE, AccessDesc, AllocationProp, Device, DevicePtr, LOCATION_DEVICE, Location, SUCCESS, Status, WholeAllocationProp,
};
use vgpu_region::MAX_GPUS;

/// Bit of a block's word: the host has its contents, and the device may have them, too.
const IS_STORED: u64 = 1 << 62;
/// Bits that say how a device may use a block. They replace the driver's handle while the block is away.
const ACCESS_BITS: u32 = 2;
const _: () = assert!(MAX_GPUS as u32 * ACCESS_BITS <= REAL.count_ones());

/// A block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// First address.
    pub address: DevicePtr,
    /// Size in bytes, a multiple of [`GRANULE`](crate::memory::granules::GRANULE).
    pub bytes: usize,
    /// Context in which it is copied, by its place in the table of contexts: the one that it was allocated in, if the driver knows one.
    pub context: u8,
    /// Its device.
    pub device: Device,
    /// The program's handle of it; 0 for memory that the library has made.
    pub handle: u64,
    /// The driver's handle of its memory, or who may use it while it is away, with the bits above.
    pub word: &'static AtomicU64,
}

impl Block {
    /// Unmaps and releases its physical memory. Returns false if the driver does not unmap it.
    ///
    /// # Safety
    /// The program and the GPU use the block no more, or its contents were copied and the gate is closed.
    pub unsafe fn take_off(self) -> bool {
        let word = self.word.load(Acquire);
        if word & IS_AWAY != 0 {
            return true;
        }
        let access = self.access();
        // SAFETY: a mapping of this memory, and the caller's promise.
        let is_off = access != 0
            && unsafe { driver::unmap(self.address, self.bytes) == SUCCESS && driver::physical_release(word & REAL) == SUCCESS };
        if is_off {
            self.word.store(word & !REAL | IS_AWAY | access, Release);
        }
        is_off
    }

    /// Takes it off the device, after its contents were copied to the host. A block that the driver does not unmap stays.
    ///
    /// # Safety
    /// The gate is closed, and the copy has ended.
    pub unsafe fn leave(self) {
        // SAFETY: the caller's promise.
        if unsafe { self.take_off() } {
            self.set_stored();
        }
    }

    /// Creates and maps its physical memory. Returns false if it is there.
    ///
    /// # Errors
    /// The driver's status.
    pub fn put_back(self) -> Result<bool, Status> {
        let word = self.word.load(Acquire);
        if word & IS_AWAY == 0 {
            return Ok(false);
        }
        let properties = virtual_handles::properties(self.handle, self.device);
        let real = create_at(self.address, self.bytes, &properties, word & REAL)?;
        self.word.store(word & !(REAL | IS_AWAY) | real, Release);
        Ok(true)
    }

    /// Gives up contents that could not be copied back: a fault tells the program that they are lost; wrong words would not.
    ///
    /// # Safety
    /// The gate is closed.
    pub unsafe fn lose(self) {
        // SAFETY: no call uses the block, and nothing is left in it.
        unsafe { self.take_off() };
    }

    /// Returns true if its memory is not on the device.
    pub fn is_away(self) -> bool {
        self.word.load(Acquire) & IS_AWAY != 0
    }

    /// Returns true if the host has its contents.
    pub fn is_stored(self) -> bool {
        self.word.load(Acquire) & IS_STORED != 0
    }

    /// Records that the host has its contents.
    pub fn set_stored(self) {
        self.word.fetch_or(IS_STORED, AcqRel);
    }

    /// Records that the contents on the host are not the block's any more.
    pub fn forget_stored(self) {
        self.word.fetch_and(!IS_STORED, AcqRel);
    }

    /// Returns who may use it. The program may have changed that only for its own mappings.
    fn access(self) -> u64 {
        if self.handle == 0 { access_of_all(self.device) } else { access_at(self.address, devices()) }
    }
}

/// Returns the devices of the session.
fn devices() -> Range<Device> {
    0..session::ready().map_or(0, |session| session.gpus().len()) as Device
}

/// Returns the bits that let a device read and write, or as `flags` says.
fn access_of(device: Device, flags: u64) -> u64 {
    (flags & u64::from(ACCESS_READ_WRITE as u32)) << (device as u32 * ACCESS_BITS)
}

/// Returns the access of a device, and of those that can use its memory.
pub fn access_of_all(device: Device) -> u64 {
    let users = devices().filter(|&peer| peer == device || can_use(peer, device));
    users.fold(0, |access, user| access | access_of(user, u64::from(ACCESS_READ_WRITE as u32)))
}

/// Returns true if a device may read and write a mapping.
pub fn has_all_access(address: DevicePtr, device: Device) -> bool {
    access_at(address, device..device + 1) == access_of(device, u64::from(ACCESS_READ_WRITE as u32))
}

/// Returns the access that some devices have to a mapping.
fn access_at(address: DevicePtr, devices: Range<Device>) -> u64 {
    let flags_for = |device| {
        let (mut flags, location) = (0, Location { kind: LOCATION_DEVICE, id: device });
        // SAFETY: the driver reads the location and writes the flags.
        if unsafe { driver::get_access(&raw mut flags, &raw const location, address) } == SUCCESS { flags } else { 0 }
    };
    devices.fold(0, |access, device| access | access_of(device, flags_for(device)))
}

/// Returns true if a device can use another's memory.
fn can_use(peer: Device, device: Device) -> bool {
    let mut can = 0;
    // SAFETY: the driver writes one integer.
    unsafe { driver::can_access_peer(&raw mut can, peer, device) == SUCCESS && can != 0 }
}

/// Creates physical memory and maps it at a reserved address for the devices in `access`. Returns the driver's handle.
///
/// # Errors
/// The driver's status.
pub fn create_at(address: DevicePtr, bytes: usize, properties: &WholeAllocationProp, access: u64) -> Result<u64, Status> {
    let (mut handle, mut list, mut count) = (0, [AccessDesc::default(); MAX_GPUS], 0);
    let flags_of = |device: Device| (access >> (device as u32 * ACCESS_BITS)) as i32 & ACCESS_READ_WRITE;
    for (place, device) in list.iter_mut().zip(devices().filter(|&device| flags_of(device) != 0)) {
        *place = AccessDesc { location: Location { kind: LOCATION_DEVICE, id: device }, flags: flags_of(device) };
        count += 1;
    }
    // SAFETY: the driver reads the properties and the list, which has `count` entries, and writes the handle. The address is reserved and
    // free. A failure undoes the steps before it, the last one first.
    unsafe {
        let mut status = driver::physical_create(&raw mut handle, bytes, properties, 0);
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

/// Returns the properties of memory that the library makes.
pub const fn plain(device: Device) -> WholeAllocationProp {
    WholeAllocationProp { begin: AllocationProp::of_device(device), rest: [0; 2] }
}
