//! Memory that is shared between processes: exported by a handle or a descriptor, imported by another process.
//!
//! It is charged once, to the process that made it, in whichever container that is. An importer is charged what NVML lists for it beyond
//! its account: nothing while the maker holds the memory, all of it once the maker has freed it or died. Freed memory that only a
//! descriptor keeps on the device is in no process's list; it stays charged to its maker until the descriptor is closed.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::hooks::{movable, spill, vmm};
use crate::loader::driver;
use crate::memory::admission::guard::measured;
use crate::memory::admission::target::with_current;
use crate::memory::granules::GRANULE;
use crate::memory::ledger::account;
use crate::memory::objects::exports::{EXPORTED, is_exported, key_of, mark_of, record};
use crate::memory::objects::orphans::{BY_NAME, keep};
use crate::memory::objects::{address_map, context_table, linear, physical};
use crate::memory::reconcile::importers::charge_others;
use crate::memory::reconcile::{driver_view, overhead};
use crate::residency::blocks;
use crate::session::{self, Gpu};
use vgpu_cuda_abi::cuda::{self, DevicePtr, SUCCESS, Status};
use vgpu_cuda_abi::descriptors::RestoreArgs;

/// Frees exported memory with `call`, after which `freed` tells how many granules were given back to the account. What is still on the
/// device is charged again. `by` is the mark of the descriptor that may keep it.
fn free_shared(gpu: &Gpu, by: u64, freed: impl FnOnce() -> u32, call: impl FnOnce() -> Status) -> Status {
    let before = driver_view::device_free();
    let status = call();
    let freed = u64::from(freed()) * GRANULE;
    if status != SUCCESS || freed == 0 || driver_view::device_free() >= before.saturating_add(freed as usize) {
        return status;
    }
    // Kept by another handle of this process, by other processes, or by a descriptor that no process has imported yet.
    let total = gpu.account.total.pages();
    overhead::reconcile(gpu);
    charge_others(gpu);
    let found = gpu.account.total.pages().saturating_sub(total);
    let kept = pages(freed).saturating_sub(u32::try_from(found).unwrap_or(u32::MAX));
    if kept != 0 {
        account::charge(gpu, kept);
        // Like managed memory, NVML does not list it by process.
        gpu.charge.managed.fetch_add(kept, AcqRel);
        keep(gpu, kept, by);
    }
    status
}

/// Makes a call that may free physical memory: that of `handle`, if it is exported.
fn free_physical(handle: Option<u64>, call: impl FnOnce() -> Status) -> Status {
    let Some(handle) = handle.filter(|&handle| is_exported(handle)) else { return call() };
    let Some((device, granules)) = physical::charged(handle) else { return call() };
    let Some(gpu) = session::ready().and_then(|session| session.gpu(device)) else { return call() };
    let freed = || {
        if physical::charged(handle).is_some() {
            return 0;
        }
        EXPORTED.remove(handle);
        granules
    };
    let by = EXPORTED.get(handle).map_or(BY_NAME, |by| by.load(Relaxed));
    free_shared(gpu, by, freed, call)
}

/// `cuMemExportToShareableHandle`, and `cuMemGetHandleForAddressRange`, which makes descriptors for other drivers. `keys` are of the memory.
pub unsafe fn export<Keys>(call: impl FnOnce() -> Status, shareable: *mut c_void, kind: i32, keys: impl FnOnce() -> Keys) -> Status
where
    Keys: Iterator<Item = u64>,
{
    let status = call();
    if status == SUCCESS {
        // SAFETY: the driver has just written a handle of this kind.
        let mark = unsafe { mark_of(shareable, kind) };
        keys().for_each(|key| record(key, mark));
    }
    status
}

/// `cuIpcGetMemHandle`
pub fn export_linear(call: impl FnOnce() -> Status, address: DevicePtr) -> Status {
    let status = call();
    if status == SUCCESS {
        record(key_of(address), BY_NAME);
    } else {
        spill::cannot_be_shared(address);
    }
    status
}

/// `cuMemRelease`
pub fn release(call: impl FnOnce() -> Status, handle: u64) -> Status {
    free_physical(Some(handle), || vmm::release(call, handle))
}

/// `cuMemUnmap`
pub fn unmap(call: impl FnOnce() -> Status, address: DevicePtr, bytes: usize) -> Status {
    free_physical(physical::mapped_at(address), || vmm::unmap(call, address, bytes))
}

/// `cuMemFree` in both versions
#[inline]
pub fn free(call: impl FnOnce() -> Status, address: DevicePtr) -> Status {
    match () {
        () if blocks::is_one(address) => linear::free_with(address, || movable::free(address)),
        () if EXPORTED.is_unused() => linear::free_with(address, call),
        () => free_exported(call, address),
    }
}

/// Frees memory that this process may have exported: other processes may keep it.
#[cold]
fn free_exported(call: impl FnOnce() -> Status, address: DevicePtr) -> Status {
    let block = address_map::get(address).filter(|block| block.count == 1 && block.kind != address_map::Kind::Managed);
    let owner = block.and_then(|block| Some((block.granules, context_table::gpu_of(block.context)?)));
    match owner.and_then(|owner| Some((owner, EXPORTED.remove(address)?))) {
        Some(((granules, gpu), by)) => free_shared(gpu, by, || granules, || linear::free_with(address, call)),
        None => linear::free_with(address, call),
    }
}

/// Imports memory, or a pool, of another process or API. `undo` frees the imported object.
pub unsafe fn import<T: Copy>(call: impl FnOnce() -> Status, object: *mut T, undo: unsafe fn(T) -> Status) -> Status {
    // SAFETY: the object was just made, and the program has not seen it.
    with_current(call, |current, call| measured(current.gpu, call, || _ = unsafe { undo(*object) }))
}

/// `cuMemImportFromShareableHandle`. The process's own memory may come back by the handle that it has.
pub unsafe fn import_physical(call: impl FnOnce() -> Status, handle: *mut u64) -> Status {
    // SAFETY: as the caller promises.
    unsafe { vmm::counted(|| import(call, handle, driver::physical_release), handle) }
}

/// `cuCheckpointProcessRestore`: onto the GPUs that the process came from, where its memory stayed charged. On others it would be
/// uncharged, so that is refused.
pub unsafe fn restore(call: impl FnOnce() -> Status, arguments: *const RestoreArgs) -> Status {
    // SAFETY: as the caller promises.
    match unsafe { arguments.as_ref() } {
        Some(arguments) if arguments.pair_count != 0 && session::is_memory_limited() => cuda::NOT_SUPPORTED,
        _ => call(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::objects::orphans::{BY_SEVERAL, mark};

    #[test]
    fn a_second_descriptor_counts_while_the_first_is_open() {
        // SAFETY: a C string.
        let one = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
        record(0x7001_0000, mark(one));
        record(0x7001_0000, BY_NAME);
        assert_eq!(EXPORTED.get(0x7001_0000).unwrap().load(Relaxed), mark(one));
        record(0x7001_0000, mark(one));
        assert_eq!(EXPORTED.get(0x7001_0000).unwrap().load(Relaxed), BY_SEVERAL);
        // SAFETY: a descriptor of this test's own.
        unsafe { libc::close(one) };
    }
}
