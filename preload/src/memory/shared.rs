//! Memory that crosses the border of a process: exported by a handle or a descriptor, imported by another process.
//!
//! It is charged once, where it was made, in whichever container that is. Who imports it is charged what NVML says it holds more for
//! it: nothing while the maker keeps it, all of it when the maker has let go or died and the import keeps it alive. A maker that lets
//! go of exported memory that stays on the device all the same, because a descriptor keeps it and nobody's process, stays charged until
//! that is closed.

use core::ffi::c_void;
use core::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

use vgpu_region::ledger::pages;
use vgpu_region::map::Census;
use vgpu_region::region::SLOTS;

use super::kept::{BY_NAME, BY_SEVERAL, is_kept, keep, mark};
use super::known::{self, Current};
use super::table::Table;
use super::{GRANULE, account, blocks, context, linear, physical, refusal, truth};
use crate::cuda::{Device, DevicePtr, Handle, OUT_OF_MEMORY, SUCCESS, Status};
use crate::driver;
use crate::list::List;
use crate::session::{self, Gpu};

/// What was exported: handles of physical memory, and addresses of linear memory; with the [`mark`] of a descriptor that keeps it.
static EXPORTED: Table = Table::new();

/// Makes a call that takes memory nobody can tell beforehand: measured, and undone if it went past the limit.
pub fn measured(gpu: &Gpu, call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    let before = truth::device_free();
    let status = call();
    if status != SUCCESS {
        return status;
    }
    truth::reconcile_after(gpu, before);
    if gpu.account.total.pages() <= gpu.limit_pages() {
        return SUCCESS;
    }
    undo();
    truth::reconcile(gpu);
    refusal::refuse(gpu, pages(GRANULE));
    OUT_OF_MEMORY
}

fn measured_here(call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    match known::current() {
        Ok(Current { gpu, .. }) => measured(gpu, call, undo),
        Err(None) => call(),
        Err(Some(status)) => status,
    }
}

/// Charges the container's other processes what NVML says they hold beyond their accounts. After a maker's death or release, memory
/// that they imported is theirs.
pub fn charge_others(gpu: &Gpu) {
    let Some(session) = session::ready() else { return };
    let census = Census::open(session::region_path());
    let (region, own) = (session.membership.region, session.membership.index);
    // Who takes or gives back memory while NVML is asked accounts for it by itself.
    let mut before = List::<_, SLOTS>::new();
    for (_, slot) in region.used_slots() {
        before.push(slot.gpus.get(gpu.place).map(|charge| charge.charge.see()));
    }
    let Some(list) = truth::processes(gpu) else { return };
    for ((index, slot), &before) in region.used_slots().zip(before.as_slice()).filter(|((index, _), _)| *index != own) {
        let (Some(charge), Some(bytes)) = (slot.gpus.get(gpu.place), list.bytes_of(slot.pid.load(Relaxed))) else { continue };
        let overhead = charge.overhead.load(Acquire);
        let held = charge.charge.held().saturating_sub(charge.managed.load(Relaxed));
        let more = pages(bytes).saturating_sub(held);
        let still = before == Some(charge.charge.see())
            && !charge.charge.in_flight()
            && !charge.makes_unclaimed_call()
            && slot.making_context.load(Acquire) == 0;
        if more == 0 || !still || census.is_dead(index) {
            continue;
        }
        if charge.charge.begin(&gpu.account.total, more, u64::MAX).is_ok() {
            // Of several that see it at once, one charges it.
            let first = charge.overhead.compare_exchange(overhead, overhead + more, AcqRel, Relaxed).is_ok();
            charge.charge.finish(&gpu.account.total, more, if first { more } else { 0 });
            account::hold_back_near_the_limit(gpu);
        }
    }
}

/// Lets go of exported memory with `call`, after which `pages` of it may have been given back to the account.
fn let_go(gpu: &Gpu, by: u64, size: impl FnOnce() -> u32, call: impl FnOnce() -> Status) -> Status {
    let before = truth::device_free();
    let status = call();
    let gone = size();
    if status != SUCCESS || gone == 0 || truth::device_free() >= before.saturating_add((u64::from(gone) * GRANULE) as usize) {
        return status;
    }
    // It is still on the device: for this process by another handle, for others, or for a descriptor that nobody has imported yet.
    let total = gpu.account.total.pages();
    truth::reconcile(gpu);
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

fn is_exported(key: u64) -> bool {
    !EXPORTED.is_unused() && EXPORTED.get(key).is_some()
}

fn note(key: u64, by: u64) {
    match EXPORTED.get(key) {
        None => _ = EXPORTED.insert(key, by),
        Some(known) if is_kept(known.load(Relaxed)) => known.store(if by == BY_NAME { known.load(Relaxed) } else { BY_SEVERAL }, Relaxed),
        Some(known) => known.store(by, Relaxed),
    }
}

/// Kinds 1 of both sorts of exports are descriptors.
unsafe fn mark_of(out: *const c_void, kind: i32) -> u64 {
    // SAFETY: the driver has just written an integer there.
    if kind == 1 { mark(unsafe { out.cast::<i32>().read_unaligned() }) } else { BY_NAME }
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
        super::spill::cannot_be_shared(address);
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

fn note_address(address: DevicePtr, by: u64) {
    let (mut base, mut size) = (address, 0);
    // SAFETY: the driver writes into the two variables.
    unsafe { driver::address_range(&raw mut base, &raw mut size, address) };
    note(physical::mapped_at(base).unwrap_or(base), by);
}

/// `cuMemRelease`
pub unsafe fn release(real: unsafe extern "C" fn(u64) -> Status, handle: u64) -> Status {
    // SAFETY: the program's own argument.
    let call = || unsafe { physical::release(real, handle) };
    if is_exported(handle) { let_go_physical(handle, call) } else { call() }
}

/// `cuMemUnmap`
pub unsafe fn unmap(real: unsafe extern "C" fn(DevicePtr, usize) -> Status, address: DevicePtr, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { physical::unmap(real, address, bytes) };
    match physical::mapped_at(address).filter(|&handle| is_exported(handle)) {
        Some(handle) => let_go_physical(handle, call),
        None => call(),
    }
}

/// `cuMemFree_v2`
#[inline]
pub unsafe fn free(real: unsafe extern "C" fn(DevicePtr) -> Status, address: DevicePtr) -> Status {
    // SAFETY: the program's own argument.
    unsafe { if EXPORTED.is_unused() { linear::free(real, address) } else { free_exported(real, address) } }
}

#[cold]
unsafe fn free_exported(real: unsafe extern "C" fn(DevicePtr) -> Status, address: DevicePtr) -> Status {
    // SAFETY: the program's own argument.
    let call = || unsafe { linear::free(real, address) };
    let block = blocks::get(address).filter(|block| block.count == 1 && block.kind != blocks::Kind::Managed);
    match block.and_then(|block| Some((block.granules, known::gpu_of(block.context)?))) {
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
        if status == SUCCESS { physical::counted(handle) } else { status }
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

/// `CUipcMemHandle`: passed whole.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle([u64; 8]);

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

/// `CUcheckpointRestoreArgs`, up to what is read; drivers before CUDA 13 have zeros there.
#[repr(C)]
#[derive(Debug)]
pub struct RestoreArgs {
    pairs: *const c_void,
    pair_count: u32,
}

/// `cuCheckpointProcessRestore`: onto the GPUs that the process came from, where its memory stayed charged. Others it would use
/// uncharged.
pub unsafe fn restore(real: unsafe extern "C" fn(i32, *mut RestoreArgs) -> Status, pid: i32, arguments: *mut RestoreArgs) -> Status {
    // SAFETY: the program's own arguments: null or a whole structure.
    unsafe {
        match arguments.as_ref() {
            Some(known) if known.pair_count != 0 && context::is_limited() => crate::cuda::NOT_SUPPORTED,
            _ => real(pid, arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use cudarc::driver::sys;

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

    #[test]
    fn layouts_are_cudas() {
        assert_eq!(size_of::<IpcHandle>(), size_of::<sys::CUipcMemHandle>());
        assert_eq!(offset_of!(RestoreArgs, pair_count), offset_of!(sys::CUcheckpointRestoreArgs, gpuPairsCount));
    }
}
