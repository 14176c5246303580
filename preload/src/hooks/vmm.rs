//! Virtual memory management: physical memory and its mappings.

use core::ffi::c_void;

use crate::loader::driver;
use crate::memory::admission::claim::claim;
use crate::memory::granules;
use crate::memory::granules::GRANULE;
use crate::memory::ledger::changes;
use crate::memory::objects::address_map::{Block, Kind};
use crate::memory::objects::physical::{HANDLES, MAPPINGS, add_one, drop_one, give_back, keep, let_go};
use crate::memory::objects::physical_counts::{By, Physical};
use crate::memory::objects::{address_map, linear, physical};
use crate::session;
use crate::session::State;
use vgpu_cuda_abi::cuda::{AllocationProp, DevicePtr, LOCATION_DEVICE, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, Status};

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
        let claim = match claim(gpu, granules::rounded_pages(bytes as u64, GRANULE)) {
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
    changes::together(|| release_with(handle, || unsafe { real(handle) }))
}

fn release_with(handle: u64, call: impl FnOnce() -> Status) -> Status {
    let dropped = drop_one(handle, By::Handle);
    let status = match dropped {
        Some(physical) if physical.is_gone() && physical.is_object() => physical::part(handle, call),
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
    changes::together(|| unmap_with(address, bytes, || unsafe { real(address, bytes) }))
}

fn unmap_with(address: DevicePtr, bytes: usize, call: impl FnOnce() -> Status) -> Status {
    let status = call();
    if status == SUCCESS {
        let mut at = address;
        while at < address.saturating_add(bytes as u64) {
            let size = address_map::take(at, Kind::Mapping).map_or(GRANULE, |block| u64::from(block.granules) * GRANULE);
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

#[cfg(test)]
mod tests {
    use crate::memory::granules::GRANULE;
    use crate::memory::granules::GRANULE_PAGES;
    use crate::memory::ledger::account;
    use crate::memory::objects::address_map;
    use crate::memory::objects::address_map::Block;
    use crate::memory::objects::address_map::Kind;
    use crate::memory::objects::context_table;
    use crate::memory::objects::linear;
    use crate::memory::objects::physical::HANDLES;
    use crate::memory::objects::physical::add_one;
    use crate::memory::objects::physical::charged;
    use crate::memory::objects::physical::drop_one;
    use crate::memory::objects::physical::keep;
    use crate::memory::objects::physical::note_for_test;
    use crate::memory::objects::physical_counts::By;
    use crate::memory::objects::physical_counts::MOST;
    use crate::memory::objects::physical_counts::Physical;
    use crate::os::mmap;
    use crate::session::Gpu;
    use vgpu_cuda_abi::cuda;
    use vgpu_cuda_abi::cuda::DevicePtr;
    use vgpu_cuda_abi::cuda::OUT_OF_MEMORY;
    use vgpu_cuda_abi::cuda::SUCCESS;
    use vgpu_cuda_abi::cuda::Status;
    use vgpu_region::uuid::Uuid;

    use super::*;

    #[test]
    fn a_mapping_gives_back_what_a_context_on_its_way_out_left_there() {
        unsafe extern "C" fn succeed(_: DevicePtr, _: usize, _: usize, _: u64, _: u64) -> Status {
            SUCCESS
        }
        // SAFETY: fresh pages, all zero, which are valid accounts, and never unmapped.
        let (account, charge) = unsafe { (&*mmap::allocate(), &*mmap::allocate()) };
        let gpu = Box::leak(Box::new(Gpu { device: 0, uuid: Uuid::default(), total: 0, place: 0, limit: None, account, charge }));
        let context = context_table::remember(0x7000_0200 as cuda::Handle, gpu, 0);
        let (handle, at) = (0x7000_0201, 0x7c00_0000_0000);
        account::charge(gpu, 5 * GRANULE_PAGES);
        linear::note(at, Block { count: 1, granules: 3, context, kind: Kind::Large });
        note_for_test(handle, 2);
        for _ in 0..2 {
            // SAFETY: a function that only answers.
            unsafe { assert_eq!(map(succeed, at, 2 * GRANULE as usize, 0, handle, 0), SUCCESS) };
            assert_eq!((gpu.charge.charge.held(), address_map::get(at).unwrap().kind), (2 * GRANULE_PAGES, Kind::Mapping));
        }
        context_table::record(context).unwrap().forget();
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
