//! Physical memory (`cuMemCreate`) and its mappings. It lives while a handle or a mapping does.

mod counts;

use core::ffi::c_void;
use core::sync::atomic::{Ordering::AcqRel, Ordering::Acquire};

use vgpu_region::ledger::pages;

use super::GRANULE;
use super::account::{self, claim};
use super::blocks::{self, Block, Kind};
use super::table::Table;
use super::{keepers, linear};
use crate::cuda::{AllocationProp, Device, DevicePtr, LOCATION_DEVICE, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, Status};
use crate::driver;
use crate::session::{self, State};
use counts::{By, MOST, Physical};

/// Handles to [`Physical`], packed.
static HANDLES: Table = Table::new();
/// From a mapping's address to its handle.
static MAPPINGS: Table = Table::new();

/// Counts one thing more that keeps a handle's memory. `Ok(false)` if that is not charged here.
///
/// # Errors
/// CUDA's out-of-memory code if there are more than can be counted.
fn add_one(handle: u64, by: By) -> Result<bool, Status> {
    let Some(record) = HANDLES.get(handle) else { return Ok(false) };
    let more = |word| {
        let mut physical = Physical::unpack(word);
        let count = physical.count(by);
        *count += 1;
        (*count <= MOST).then(|| physical.pack())
    };
    record.fetch_update(AcqRel, Acquire, more).map(|_| true).map_err(|_| OUT_OF_MEMORY)
}

/// Takes a count away before the driver is asked to: afterwards the handle may be another's. Gives what has to be given back to the
/// account if the driver succeeds; `None` if nothing was counted, so that the driver will refuse.
fn drop_one(handle: u64, by: By) -> Option<Physical> {
    let less = |word| {
        let mut physical = Physical::unpack(word);
        let count = physical.count(by);
        *count = count.checked_sub(1)?;
        Some(physical.pack())
    };
    let mut now = Physical::unpack(HANDLES.get(handle)?.fetch_update(AcqRel, Acquire, less).ok()?);
    *now.count(by) -= 1;
    if now.is_gone() {
        HANDLES.remove(handle);
    }
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

/// One thing more keeps the memory: it counts as a mapping. `Ok(false)` if the memory is not charged here.
///
/// # Errors
/// CUDA's out-of-memory code if there are more than can be counted.
pub fn keep(handle: u64) -> Result<bool, Status> {
    add_one(handle, By::Mapping)
}

/// Undoes [`keep`].
pub fn let_go(handle: u64) {
    if let Some(physical) = drop_one(handle, By::Mapping) {
        give_back(handle, physical);
    }
}

fn give_back(handle: u64, physical: Physical) {
    if !physical.is_gone() {
        return;
    }
    if physical.is_object() {
        keepers::forget_owner(handle);
    }
    if let Some(gpu) = session::ready().and_then(|session| session.gpu(physical.device)) {
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
        let status = counted_anew(handle, physical);
        if status == SUCCESS {
            claim.keep()
        } else {
            claim.drop_all()
        }
        status
    }
}

/// Notes a new handle, or gives it up: what cannot be kept account of cannot be had.
unsafe fn counted_anew(handle: *mut u64, physical: Physical) -> Status {
    // SAFETY: the driver has just written the handle, and the program has not seen it.
    unsafe {
        if HANDLES.insert(*handle, physical.pack()) {
            return SUCCESS;
        }
        driver::physical_release(*handle);
        *handle = 0;
        OUT_OF_MEMORY
    }
}

/// `cuMemRelease`
pub unsafe fn release(real: unsafe extern "C" fn(u64) -> Status, handle: u64) -> Status {
    // SAFETY: the program's own argument.
    account::together(|| release_with(handle, || unsafe { real(handle) }))
}

fn release_with(handle: u64, call: impl FnOnce() -> Status) -> Status {
    let dropped = drop_one(handle, By::Handle);
    let status = match dropped {
        Some(physical) if physical.is_gone() && physical.is_object() => keepers::part(handle, call),
        _ => call(),
    };
    match dropped {
        Some(physical) if physical.is_object() && status == SUCCESS => {}
        Some(physical) if status == SUCCESS => give_back(handle, physical),
        // The count comes back.
        Some(physical) if physical.is_gone() => _ = HANDLES.insert(handle, Physical { handles: 1, ..physical }.pack()),
        Some(_) => _ = add_one(handle, By::Handle),
        None => {}
    }
    status
}

/// `cuMemRetainAllocationHandle`
pub unsafe fn retain(real: unsafe extern "C" fn(*mut u64, *mut c_void) -> Status, handle: *mut u64, address: *mut c_void) -> Status {
    // SAFETY: the program's own arguments; the handle is read only after the driver wrote it, and is released if it cannot be counted.
    unsafe {
        let status = real(handle, address);
        if status == SUCCESS { counted(handle) } else { status }
    }
}

/// Counts a handle that the driver has just given, once more or for the first time, so that it has to be released; or takes it back.
/// For the first time it has no memory that is charged here.
///
/// # Safety
/// The driver has just written the handle, and the program has not seen it.
pub unsafe fn counted(handle: *mut u64) -> Status {
    // SAFETY: as the caller promises.
    unsafe {
        let status = match add_one(*handle, By::Handle) {
            Ok(true) => return SUCCESS,
            Ok(false) => return counted_anew(handle, Physical { granules: 0, device: 0, handles: 1, mappings: 0 }),
            Err(status) => status,
        };
        driver::physical_release(*handle);
        *handle = 0;
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
    // Counted before: the handle may be released while the driver is at it.
    let charged = match keep(handle) {
        Ok(charged) => charged,
        Err(status) => return status,
    };
    // SAFETY: the program's own arguments.
    let status = unsafe { real(address, bytes, offset, handle, flags) };
    if status == SUCCESS && charged {
        MAPPINGS.insert(address, handle);
        let granules = (bytes as u64).div_ceil(GRANULE) as u32;
        linear::note(address, Block { count: 1, granules, context: 0, kind: Kind::Mapping });
    } else if charged {
        let_go(handle);
    }
    status
}

/// `cuMemUnmap`: every mapping in the range.
pub unsafe fn unmap(real: unsafe extern "C" fn(DevicePtr, usize) -> Status, address: DevicePtr, bytes: usize) -> Status {
    // SAFETY: the program's own arguments. The addresses stay reserved, so nothing else can come to lie there in between.
    account::together(|| unmap_with(address, bytes, || unsafe { real(address, bytes) }))
}

fn unmap_with(address: DevicePtr, bytes: usize, call: impl FnOnce() -> Status) -> Status {
    let status = call();
    if status == SUCCESS {
        let mut at = address;
        while at < address.saturating_add(bytes as u64) {
            let size = blocks::take(at, Kind::Mapping).map_or(GRANULE, |block| u64::from(block.granules) * GRANULE);
            if let Some(handle) = MAPPINGS.remove(at)
                && let Some(physical) = drop_one(handle, By::Mapping)
            {
                give_back(handle, physical);
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
    drop_one(handle, By::Handle);
}

#[cfg(test)]
mod tests {
    use vgpu_region::uuid::Uuid;

    use super::*;
    use crate::memory::{GRANULE_PAGES, known};
    use crate::session::Gpu;

    #[test]
    fn a_mapping_gives_back_what_a_context_on_its_way_out_left_there() {
        unsafe extern "C" fn succeed(_: DevicePtr, _: usize, _: usize, _: u64, _: u64) -> Status {
            SUCCESS
        }
        // SAFETY: fresh pages, all zero, which are valid accounts, and never unmapped.
        let (account, charge) = unsafe { (&*session::allocate(), &*session::allocate()) };
        let gpu = Box::leak(Box::new(Gpu { device: 0, uuid: Uuid::default(), total: 0, place: 0, limit: None, account, charge }));
        let context = known::remember(0x7000_0200 as crate::cuda::Handle, gpu, 0);
        let (handle, at) = (0x7000_0201, 0x7c00_0000_0000);
        account::charge(gpu, 5 * GRANULE_PAGES);
        linear::note(at, Block { count: 1, granules: 3, context, kind: Kind::Large });
        note_for_test(handle, 2);
        for _ in 0..2 {
            // SAFETY: a function that only answers.
            unsafe { assert_eq!(map(succeed, at, 2 * GRANULE as usize, 0, handle, 0), SUCCESS) };
            assert_eq!((gpu.charge.charge.held(), blocks::get(at).unwrap().kind), (2 * GRANULE_PAGES, Kind::Mapping));
        }
        known::record(context).unwrap().forget();
    }

    #[test]
    fn more_than_can_be_counted_is_refused_and_nothing_wraps() {
        let handle = 0x7000_0101;
        note_for_test(handle, 5);
        let most = Physical { granules: 5, device: 0, handles: MOST, mappings: MOST };
        HANDLES.get(handle).unwrap().store(most.pack(), core::sync::atomic::Ordering::Release);
        assert_eq!((add_one(handle, By::Handle), keep(handle)), (Err(OUT_OF_MEMORY), Err(OUT_OF_MEMORY)));
        assert_eq!(charged(handle), Some((0, 5)));
        assert!(drop_one(handle, By::Handle).is_some_and(|physical| !physical.is_gone()));
        assert_eq!((add_one(handle, By::Handle), add_one(handle, By::Handle)), (Ok(true), Err(OUT_OF_MEMORY)));
        assert_eq!(keep(0x7000_0102), Ok(false));
    }
}
