//! Virtual memory management: physical memory and its mappings.

use crate::loader::driver;
use crate::memory::admission::acquire::{Estimate, Operation, Taken, acquire};
use crate::memory::admission::target::with_device;
use crate::memory::granules::{GRANULE, rounded_pages};
use crate::memory::ledger::changes;
use crate::memory::objects::address_map::{Block, Kind};
use crate::memory::objects::physical::{HANDLES, MAPPINGS, add_one, drop_one, give_back, keep, unkeep};
use crate::memory::objects::physical_counts::{By, Physical};
use crate::memory::objects::{address_map, linear, physical, virtual_handles};
use vgpu_cuda_abi::cuda::{AllocationProp, DevicePtr, INVALID_VALUE, LOCATION_DEVICE, OUT_OF_MEMORY, SUCCESS, Status};

/// `cuMemCreate`
pub unsafe fn create(call: impl FnOnce() -> Status, handle: *mut u64, bytes: usize, properties: *const AllocationProp) -> Status {
    // SAFETY: the program's own, or null, which is the driver's to refuse.
    let Some(location) = (unsafe { properties.as_ref() }).map(|properties| properties.location) else { return call() };
    if handle.is_null() || location.kind != LOCATION_DEVICE {
        return call();
    }
    with_device(location.id, call, |gpu, call| {
        let granules = (bytes as u64).div_ceil(GRANULE) as u32;
        let taken = rounded_pages(bytes as u64, GRANULE);
        // SAFETY: the driver has just written the handle, and the program has not seen it.
        let record = || unsafe {
            let physical = Physical { granules, device: location.id, handles: 1, mappings: 0 };
            HANDLES.insert(*handle, physical.pack()).then_some(Taken::Object(taken))
        };
        // SAFETY: as above.
        let undo = || unsafe {
            virtual_handles::end(*handle);
            release_unseen(handle)
        };
        acquire(gpu, Operation { estimate: Estimate::AtMost(taken), call, record, undo })
    })
}

/// Takes a handle back that cannot be recorded, and releases it, unless the driver has never given it.
unsafe fn release_unseen(handle: *mut u64) {
    // SAFETY: as the caller promises.
    unsafe {
        if !virtual_handles::is_one(*handle) {
            driver::physical_release(*handle);
        }
        *handle = 0;
    }
}

/// `cuMemRelease`
pub fn release(call: impl FnOnce() -> Status, handle: u64) -> Status {
    changes::together(|| {
        let dropped = drop_one(handle, By::Handle);
        let call = || match dropped {
            // The library releases the driver's handle, once nothing refers to the memory any more.
            Some(_) if virtual_handles::is_one(handle) => SUCCESS,
            None if virtual_handles::is_one(handle) => INVALID_VALUE,
            _ => call(),
        };
        let ends_object = dropped.is_some_and(|physical| physical.is_unreferenced() && physical.is_object());
        let put_back = |physical: Physical| {
            if physical.is_unreferenced() {
                HANDLES.insert(handle, Physical { handles: 1, ..physical }.pack());
            } else {
                _ = add_one(handle, By::Handle);
            }
        };
        // What an object keeps is given back when the object ends (`physical::release_object`).
        let give_back = |physical: Physical| {
            if !physical.is_object() {
                give_back(handle, physical)
            }
        };
        changes::release(dropped, || if ends_object { physical::release_object(handle, call) } else { call() }, give_back, put_back)
    })
}

/// Counts a handle that a call has just given, as it has to be released once more; or releases it and refuses. A handle that is met for the
/// first time has no memory that is charged here.
pub unsafe fn counted(call: impl FnOnce() -> Status, handle: *mut u64) -> Status {
    let status = call();
    if status != SUCCESS {
        return status;
    }
    // SAFETY: the driver has just written the handle, and the program has not seen it.
    unsafe {
        if let Some(own) = virtual_handles::number_of(*handle) {
            // It is counted here, and the driver's handle has one reference.
            driver::physical_release(*handle);
            *handle = own;
        }
        let first = Physical { granules: 0, device: 0, handles: 1, mappings: 0 };
        match add_one(*handle, By::Handle) {
            Ok(true) => return SUCCESS,
            Ok(false) if HANDLES.insert(*handle, first.pack()) => return SUCCESS,
            _ => release_unseen(handle),
        }
        OUT_OF_MEMORY
    }
}

/// `cuMemMap`
pub fn map(call: impl FnOnce() -> Status, address: DevicePtr, bytes: usize, handle: u64) -> Status {
    // Counted before the call, as another thread may release the handle during it.
    let is_charged = match keep(handle) {
        Ok(is_charged) => is_charged,
        Err(status) => return status,
    };
    let status = call();
    if status == SUCCESS && is_charged {
        if !MAPPINGS.insert(address, handle) {
            // SAFETY: just mapped by this call.
            unsafe { driver::unmap(address, bytes) };
            unkeep(handle);
            return OUT_OF_MEMORY;
        }
        let granules = (bytes as u64).div_ceil(GRANULE) as u32;
        linear::record(address, Block { count: 1, granules, context: 0, kind: Kind::Mapping });
    } else if is_charged {
        unkeep(handle);
    }
    status
}

/// `cuMemUnmap`: every mapping in the range. The addresses stay reserved, so no other mapping can begin there before the records are
/// removed.
pub fn unmap(call: impl FnOnce() -> Status, address: DevicePtr, bytes: usize) -> Status {
    changes::together(|| {
        let status = call();
        let mut at = address;
        while status == SUCCESS && at < address.saturating_add(bytes as u64) {
            let size = address_map::take(at, Kind::Mapping).map_or(GRANULE, |block| u64::from(block.granules) * GRANULE);
            if let Some(handle) = MAPPINGS.remove(at)
                && let Some(physical) = drop_one(handle, By::Mapping)
            {
                give_back(handle, physical);
            }
            at += size.max(GRANULE);
        }
        status
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::granules::GRANULE_PAGES;
    use crate::memory::ledger::account;
    use crate::memory::objects::context_table;
    use crate::memory::objects::physical::{charged, record_for_test};
    use crate::memory::objects::physical_counts::MOST;
    use crate::os::mmap;
    use crate::session::Gpu;
    use vgpu_cuda_abi::cuda::Handle;
    use vgpu_region::uuid::Uuid;

    #[test]
    fn a_mapping_gives_back_blocks_of_a_context_that_is_being_destroyed() {
        // SAFETY: fresh pages, all zero, which are valid accounts, and never unmapped.
        let (account, charge) = unsafe { (&*mmap::allocate(), &*mmap::allocate()) };
        let gpu = Box::leak(Box::new(Gpu { device: 0, uuid: Uuid::default(), total: 0, place: 0, limit: None, account, charge }));
        let context = context_table::remember(0x7000_0200 as Handle, gpu, 0);
        let (handle, at) = (0x7000_0201, 0x7c00_0000_0000);
        account::charge(gpu, 5 * GRANULE_PAGES);
        linear::record(at, Block { count: 1, granules: 3, context, kind: Kind::Large });
        record_for_test(handle, 2);
        for _ in 0..2 {
            assert_eq!(map(|| SUCCESS, at, 2 * GRANULE as usize, handle), SUCCESS);
            assert_eq!((gpu.charge.charge.held(), address_map::get(at).unwrap().kind), (2 * GRANULE_PAGES, Kind::Mapping));
        }
        context_table::record(context).unwrap().forget();
    }

    #[test]
    fn counts_that_would_overflow_are_refused() {
        let handle = 0x7000_0101;
        record_for_test(handle, 5);
        let most = Physical { granules: 5, device: 0, handles: MOST, mappings: MOST };
        HANDLES.get(handle).unwrap().store(most.pack(), core::sync::atomic::Ordering::Release);
        assert_eq!((add_one(handle, By::Handle), keep(handle)), (Err(OUT_OF_MEMORY), Err(OUT_OF_MEMORY)));
        assert_eq!(charged(handle), Some((0, 5)));
        assert!(drop_one(handle, By::Handle).is_some_and(|physical| !physical.is_unreferenced()));
        assert_eq!((add_one(handle, By::Handle), add_one(handle, By::Handle)), (Ok(true), Err(OUT_OF_MEMORY)));
        assert_eq!(keep(0x7000_0102), Ok(false));
    }
}
