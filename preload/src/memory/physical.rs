//! Physical memory (`cuMemCreate`) and its mappings. It lives while a handle or a mapping does.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use vgpu_region::ledger::pages;

use super::GRANULE;
use super::account::{self, claim};
use super::blocks::{self, Block, Kind};
use super::table::Table;
use crate::cuda::{AllocationProp, Device, DevicePtr, LOCATION_DEVICE, OPERATING_SYSTEM, SUCCESS, Status};
use crate::session::{self, State};

/// Handles to [`Physical`], packed.
static HANDLES: Table = Table::new();
/// From a mapping's address to its handle.
static MAPPINGS: Table = Table::new();

#[derive(Clone, Copy)]
struct Physical {
    granules: u32,
    device: Device,
    handles: u32,
    mappings: u32,
}

impl Physical {
    fn pack(self) -> u64 {
        u64::from(self.granules & 0xff_ffff) << 40
            | (self.device as u64 & 0xff) << 32
            | u64::from(self.handles & 0xfff) << 20
            | u64::from(self.mappings & 0xf_ffff)
    }

    fn unpack(word: u64) -> Self {
        Self {
            granules: (word >> 40) as u32,
            device: (word >> 32 & 0xff) as Device,
            handles: (word >> 20 & 0xfff) as u32,
            mappings: (word & 0xf_ffff) as u32,
        }
    }

    fn is_gone(self) -> bool {
        self.handles == 0 && self.mappings == 0
    }
}

/// Changes a handle's counts. Gives what they are now.
fn change(handle: u64, change: impl Fn(&mut Physical)) -> Option<Physical> {
    let record: &AtomicU64 = HANDLES.get(handle)?;
    let update = |word| {
        let mut physical = Physical::unpack(word);
        change(&mut physical);
        Some(physical.pack())
    };
    let before = record.fetch_update(AcqRel, Acquire, update).ok()?;
    let mut now = Physical::unpack(before);
    change(&mut now);
    Some(now)
}

/// The device and the granules of a handle's memory, while it is charged here.
pub fn charged(handle: u64) -> Option<(Device, u32)> {
    HANDLES.get(handle).map(|record| Physical::unpack(record.load(Acquire))).map(|physical| (physical.device, physical.granules))
}

/// The handle that is mapped at an address, if a mapping begins there.
pub fn mapped_at(address: DevicePtr) -> Option<u64> {
    MAPPINGS.get(address).map(|handle| handle.load(Acquire))
}

/// The driver has given a handle once more: it has to be released once more.
pub fn given_again(handle: u64) {
    change(handle, |physical| physical.handles += 1);
}

/// One thing more keeps the memory: it counts as a mapping. `false` if the memory is not charged here.
pub fn keep(handle: u64) -> bool {
    change(handle, |physical| physical.mappings += 1).is_some()
}

/// Undoes [`keep`].
pub fn let_go(handle: u64) {
    if let Some(physical) = drop_one(handle, |physical| physical.mappings = physical.mappings.saturating_sub(1)) {
        give_back(physical);
    }
}

/// Takes a count away before the driver is asked to: afterwards the handle may be another's. Gives what has to be given back to the
/// account if the driver succeeds.
fn drop_one(handle: u64, one: impl Fn(&mut Physical)) -> Option<Physical> {
    let now = change(handle, one)?;
    if now.is_gone() {
        HANDLES.remove(handle);
    }
    Some(now)
}

fn give_back(physical: Physical) {
    if let (true, Some(gpu)) = (physical.is_gone(), session::ready().and_then(|session| session.gpu(physical.device))) {
        account::release(gpu, pages(u64::from(physical.granules) * GRANULE));
    }
}

/// `cuMemCreate`
pub unsafe fn create(
    real: unsafe extern "C" fn(*mut u64, usize, *const AllocationProp, u64) -> Status,
    handle: *mut u64,
    bytes: usize,
    properties: *const AllocationProp,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments; what is read has been checked for null, as the driver does.
    unsafe {
        if handle.is_null() || properties.is_null() || (*properties).location.kind != LOCATION_DEVICE {
            return real(handle, bytes, properties, flags);
        }
        let session = match session::current() {
            State::Ready(session) => session,
            State::NotYet => return real(handle, bytes, properties, flags),
            State::Refused => return OPERATING_SYSTEM,
        };
        let device = (*properties).location.id;
        let Some(gpu) = session.gpu(device) else { return real(handle, bytes, properties, flags) };
        let claim = match claim(gpu, super::rounded_pages(bytes as u64, GRANULE)) {
            Ok(claim) => claim,
            Err(status) => return status,
        };
        let status = real(handle, bytes, properties, flags);
        if status != SUCCESS {
            claim.drop_all();
            return status;
        }
        let physical = Physical { granules: (bytes as u64).div_ceil(GRANULE) as u32, device, handles: 1, mappings: 0 };
        HANDLES.insert(*handle, physical.pack());
        claim.keep();
        SUCCESS
    }
}

/// `cuMemRelease`
pub unsafe fn release(real: unsafe extern "C" fn(u64) -> Status, handle: u64) -> Status {
    let dropped = drop_one(handle, |physical| physical.handles = physical.handles.saturating_sub(1));
    // SAFETY: the program's own argument.
    let status = unsafe { real(handle) };
    if let Some(physical) = dropped {
        settle(handle, physical, status, |physical| physical.handles += 1);
    }
    status
}

/// After the driver's answer: the count is gone for good, or comes back.
fn settle(handle: u64, physical: Physical, status: Status, undo: impl Fn(&mut Physical)) {
    if status == SUCCESS {
        give_back(physical);
    } else if physical.is_gone() {
        let mut physical = physical;
        undo(&mut physical);
        HANDLES.insert(handle, physical.pack());
    } else {
        change(handle, undo);
    }
}

/// `cuMemRetainAllocationHandle`
pub unsafe fn retain(real: unsafe extern "C" fn(*mut u64, *mut c_void) -> Status, handle: *mut u64, address: *mut c_void) -> Status {
    // SAFETY: the program's own arguments; the handle is read only after the driver wrote it.
    unsafe {
        let status = real(handle, address);
        if status == SUCCESS {
            given_again(*handle);
        }
        status
    }
}

/// `cuMemMap`
pub unsafe fn map(
    real: unsafe extern "C" fn(DevicePtr, usize, usize, u64, u64) -> Status,
    address: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(address, bytes, offset, handle, flags) };
    if status == SUCCESS && change(handle, |physical| physical.mappings += 1).is_some() {
        MAPPINGS.insert(address, handle);
        let granules = (bytes as u64).div_ceil(GRANULE) as u32;
        blocks::enter(address, Block { count: 1, granules, context: 0, kind: Kind::Mapping });
    }
    status
}

/// `cuMemUnmap`: every mapping in the range.
pub unsafe fn unmap(real: unsafe extern "C" fn(DevicePtr, usize) -> Status, address: DevicePtr, bytes: usize) -> Status {
    // SAFETY: the program's own arguments. The addresses stay reserved, so nothing else can come to lie there in between.
    let status = unsafe { real(address, bytes) };
    if status == SUCCESS {
        let mut at = address;
        while at < address.saturating_add(bytes as u64) {
            let size = blocks::take(at, Kind::Mapping).map_or(GRANULE, |block| u64::from(block.granules) * GRANULE);
            if let Some(handle) = MAPPINGS.remove(at)
                && let Some(physical) = drop_one(handle, |physical| physical.mappings = physical.mappings.saturating_sub(1))
            {
                give_back(physical);
            }
            at += size.max(GRANULE);
        }
    }
    status
}

/// A handle of this many granules, as if it had just been made.
#[cfg(test)]
pub fn note_for_test(handle: u64, granules: u32) {
    HANDLES.insert(handle, Physical { granules, device: 0, handles: 1, mappings: 0 }.pack());
}

/// Its release.
#[cfg(test)]
pub fn let_go_handle_for_test(handle: u64) {
    drop_one(handle, |physical| physical.handles -= 1);
}
