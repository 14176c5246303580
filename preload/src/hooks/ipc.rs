//! Memory that crosses the border of a process: exported by a handle or a descriptor, imported by another process.
//!
//! It is charged once, where it was made, in whichever container that is. Who imports it is charged what NVML says it holds more for
//! it: nothing while the maker keeps it, all of it when the maker has let go or died and the import keeps it alive. A maker that lets
//! go of exported memory that stays on the device all the same, because a descriptor keeps it and nobody's process, stays charged until
//! that is closed.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::hooks::{alloc, spill, vmm};
use crate::loader::driver;
use crate::memory::admission::guard::measured_here;
use crate::memory::granules::GRANULE;
use crate::memory::ledger::account;
use crate::memory::objects::exports::{EXPORTED, is_exported, mark_of, note, note_address};
use crate::memory::objects::orphans::{BY_NAME, keep};
use crate::memory::objects::{address_map, context_table, physical};
use crate::memory::reconcile::importers::charge_others;
use crate::memory::reconcile::{driver_view, overhead};
use crate::session;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda;
use vgpu_cuda_abi::cuda::{Device, DevicePtr, Handle, SUCCESS, Status};
use vgpu_cuda_abi::descriptors::{IpcHandle, RestoreArgs};

/// Lets go of exported memory with `call`, after which `pages` of it may have been given back to the account.
fn let_go(gpu: &Gpu, by: u64, size: impl FnOnce() -> u32, call: impl FnOnce() -> Status) -> Status {
    let before = driver_view::device_free();
    let status = call();
    let gone = size();
    if status != SUCCESS || gone == 0 || driver_view::device_free() >= before.saturating_add((u64::from(gone) * GRANULE) as usize) {
        return status;
    }
    // It is still on the device: for this process by another handle, for others, or for a descriptor that nobody has imported yet.
    let total = gpu.account.total.pages();
    overhead::reconcile(gpu);
    charge_others(gpu);
    let (gone, found) = (pages(u64::from(gone) * GRANULE), gpu.account.total.pages().saturating_sub(total));
    let kept = gone.saturating_sub(u32::try_from(found).unwrap_or(u32::MAX));
    if kept != 0 {
        account::charge(gpu, kept);
        // As managed memory, NVML does not list it by process.
        gpu.charge.managed.fetch_add(kept, AcqRel);
        keep(gpu, kept, by);
    }
    status
}

fn gpu_with(device: Device) -> Option<&'static Gpu> {
    session::ready()?.gpu(device)
}

/// Physical memory that may be given back by `call`; `handle` is exported.
fn let_go_physical(handle: u64, call: impl FnOnce() -> Status) -> Status {
    let Some((device, granules)) = physical::charged(handle) else { return call() };
    let Some(gpu) = gpu_with(device) else { return call() };
    let gone = || {
        let is_gone = physical::charged(handle).is_none();
        if is_gone {
            EXPORTED.remove(handle);
        }
        if is_gone { granules } else { 0 }
    };
    let by = EXPORTED.get(handle).map_or(BY_NAME, |by| by.load(Relaxed));
    let_go(gpu, by, gone, call)
}

/// `cuMemExportToShareableHandle`
pub unsafe fn export_physical(
    real: unsafe extern "C" fn(*mut c_void, u64, i32, u64) -> Status,
    shareable: *mut c_void,
    handle: u64,
    kind: i32,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(shareable, handle, kind, flags) };
    if status == SUCCESS {
        // SAFETY: as above.
        note(handle, unsafe { mark_of(shareable, kind) });
    }
    status
}

/// `cuIpcGetMemHandle`
pub unsafe fn export_linear(real: unsafe extern "C" fn(*mut c_void, DevicePtr) -> Status, out: *mut c_void, address: DevicePtr) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(out, address) };
    if status == SUCCESS {
        note_address(address, BY_NAME);
    } else {
        spill::cannot_be_shared(address);
    }
    status
}

/// `cuMemGetHandleForAddressRange`: a descriptor for other drivers.
pub unsafe fn export_range(
    real: unsafe extern "C" fn(*mut c_void, DevicePtr, usize, i32, u64) -> Status,
    out: *mut c_void,
    address: DevicePtr,
    bytes: usize,
    kind: i32,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(out, address, bytes, kind, flags) };
    if status == SUCCESS {
        // SAFETY: as above.
        note_address(address, unsafe { mark_of(out, kind) });
    }
    status
}

/// `cuMemRelease`
pub unsafe fn release(real: unsafe extern "C" fn(u64) -> Status, handle: u64) -> Status {
    // SAFETY: the program's own argument.
    let call = || unsafe { vmm::release(real, handle) };
    if is_exported(handle) { let_go_physical(handle, call) } else { call() }
}

/// `cuMemUnmap`
pub unsafe fn unmap(real: unsafe extern "C" fn(DevicePtr, usize) -> Status, address: DevicePtr, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { vmm::unmap(real, address, bytes) };
    match physical::mapped_at(address).filter(|&handle| is_exported(handle)) {
        Some(handle) => let_go_physical(handle, call),
        None => call(),
    }
}

/// `cuMemFree_v2`
#[inline]
pub unsafe fn free(real: unsafe extern "C" fn(DevicePtr) -> Status, address: DevicePtr) -> Status {
    // SAFETY: the program's own argument.
    unsafe { if EXPORTED.is_unused() { alloc::free(real, address) } else { free_exported(real, address) } }
}

#[cold]
unsafe fn free_exported(real: unsafe extern "C" fn(DevicePtr) -> Status, address: DevicePtr) -> Status {
    // SAFETY: the program's own argument.
    let call = || unsafe { alloc::free(real, address) };
    let block = address_map::get(address).filter(|block| block.count == 1 && block.kind != address_map::Kind::Managed);
    match block.and_then(|block| Some((block.granules, context_table::gpu_of(block.context)?))) {
        Some((granules, gpu)) => match EXPORTED.remove(address) {
            Some(by) => let_go(gpu, by, || granules, call),
            None => call(),
        },
        None => call(),
    }
}

/// `cuMemImportFromShareableHandle`
pub unsafe fn import_physical(
    real: unsafe extern "C" fn(*mut u64, *mut c_void, i32) -> Status,
    handle: *mut u64,
    shareable: *mut c_void,
    kind: i32,
) -> Status {
    // SAFETY: the program's own arguments; the handle was just written, and the program is about to hear that it was not.
    unsafe {
        let status = measured_here(|| real(handle, shareable, kind), || _ = driver::physical_release(*handle));
        // The process's own memory may come back by the handle that it has.
        if status == SUCCESS { vmm::counted(handle) } else { status }
    }
}

/// `cuMemPoolImportFromShareableHandle`
pub unsafe fn import_pool(
    real: unsafe extern "C" fn(*mut Handle, *mut c_void, i32, u64) -> Status,
    pool: *mut Handle,
    shareable: *mut c_void,
    kind: i32,
    flags: u64,
) -> Status {
    // SAFETY: as above.
    unsafe { measured_here(|| real(pool, shareable, kind, flags), || _ = driver::pool_destroy(*pool)) }
}

/// `cuMemPoolImportPointer`
pub unsafe fn import_pointer(
    real: unsafe extern "C" fn(*mut DevicePtr, Handle, *mut c_void) -> Status,
    address: *mut DevicePtr,
    pool: Handle,
    data: *mut c_void,
) -> Status {
    // SAFETY: as above.
    unsafe { measured_here(|| real(address, pool, data), || _ = driver::free(*address)) }
}

/// `cuIpcOpenMemHandle` and `_v2`
pub unsafe fn import_linear(
    real: unsafe extern "C" fn(*mut DevicePtr, IpcHandle, u32) -> Status,
    address: *mut DevicePtr,
    handle: IpcHandle,
    flags: u32,
) -> Status {
    // SAFETY: as above.
    unsafe { measured_here(|| real(address, handle, flags), || _ = driver::ipc_close(*address)) }
}

/// `cuImportExternalMemory`
pub unsafe fn import_external(
    real: unsafe extern "C" fn(*mut Handle, *const c_void) -> Status,
    memory: *mut Handle,
    description: *const c_void,
) -> Status {
    // SAFETY: as above.
    unsafe { measured_here(|| real(memory, description), || _ = driver::external_destroy(*memory)) }
}

/// `cuCheckpointProcessRestore`: onto the GPUs that the process came from, where its memory stayed charged. Others it would use
/// uncharged.
pub unsafe fn restore(real: unsafe extern "C" fn(i32, *mut RestoreArgs) -> Status, pid: i32, arguments: *mut RestoreArgs) -> Status {
    // SAFETY: the program's own arguments: null or a whole structure.
    unsafe {
        match arguments.as_ref() {
            Some(known) if known.pair_count != 0 && session::is_memory_limited() => cuda::NOT_SUPPORTED,
            _ => real(pid, arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    
    use crate::memory::objects::exports::EXPORTED;
    use crate::memory::objects::exports::note;
    use crate::memory::objects::orphans::BY_NAME;
    use crate::memory::objects::orphans::BY_SEVERAL;
    use crate::memory::objects::orphans::mark;
    use core::sync::atomic::Ordering::Relaxed;
    
    

    #[test]
    fn a_second_descriptor_counts_while_the_first_is_open() {
        // SAFETY: a C string.
        let one = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
        note(0x7001_0000, mark(one));
        note(0x7001_0000, BY_NAME);
        assert_eq!(EXPORTED.get(0x7001_0000).unwrap().load(Relaxed), mark(one));
        note(0x7001_0000, mark(one));
        assert_eq!(EXPORTED.get(0x7001_0000).unwrap().load(Relaxed), BY_SEVERAL);
        // SAFETY: a descriptor of this test's own.
        unsafe { libc::close(one) };
    }
}
