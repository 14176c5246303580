//! Oversubscription: what the share has no room for lies on the host, up to a ceiling, where the operator and the container's request say so.
//!
//! It is managed memory that prefers the host and that the GPU is told to map where it is. So the GPU reads and writes it over the bus,
//! and no page of it moves to the device, whatever kernels, copies, fills and atomic operations do with it (seen on driver 580, H200: NVML's
//! figures for the device and for the process stay as they are). What would move it is kept away: a program's prefetch to a device goes to
//! the host, and its advice about where such memory should live is taken note of by nobody.
//!
//! The account is one of its own, beside the device's: [`vgpu_region::region::GpuAccount::spilled`].

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::{PAGE, pages};
use vgpu_region::limits::LogLevel;

use crate::loader::driver;
use crate::memory::admission::refusal;
use crate::memory::granules::{GRANULE, SMALL, rounded_pages};
use crate::memory::ledger::spilled::{ELSEWHERE, IN_USE, ceiling, is_in_use};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::{address_map, captures, context_table, linear};
use crate::memory::reconcile::dead::recover;
use crate::os::log;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{DEVICE_CPU, DevicePtr, Handle, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, Status};

/// `CU_MEM_ATTACH_GLOBAL`
const ATTACH_GLOBAL: u32 = 1;
/// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`
const SET_PREFERRED_LOCATION: i32 = 3;
/// `CU_MEM_ADVISE_SET_ACCESSED_BY`
pub const SET_ACCESSED_BY: i32 = 5;

/// An allocation of `bytes` that the device did not give; `status` says why. Where it may lie on the host it does, else the program is
/// refused, and finds a null address, as from the driver (seen on driver 580).
#[cold]
pub unsafe fn instead(address: *mut DevicePtr, bytes: u64, status: Status) -> Status {
    // SAFETY: the program's own address, which the caller has checked.
    unsafe { instead_with(address, bytes, status, || driver::allocate_managed(address, bytes as usize, ATTACH_GLOBAL)) }
}

/// The same with managed memory made by `call`.
#[cold]
pub unsafe fn instead_with(address: *mut DevicePtr, bytes: u64, status: Status, call: impl FnOnce() -> Status) -> Status {
    let status = match context_table::current() {
        _ if status != ELSEWHERE => status,
        // SAFETY: as above.
        Ok(current) => unsafe { allocate(current, address, bytes, call) },
        Err(_) => OUT_OF_MEMORY,
    };
    if status == OUT_OF_MEMORY {
        // SAFETY: as above.
        unsafe { *address = 0 };
    }
    status
}

/// Managed memory of rows as `cuMemAllocPitch` makes them.
pub unsafe fn make_pitched(address: *mut DevicePtr, pitch: *mut usize, (width, height): (usize, usize), element: u32) -> Status {
    if ![4, 8, 16].contains(&element) {
        return INVALID_VALUE;
    }
    let row = width.next_multiple_of(linear::PITCH as usize);
    // SAFETY: the program's own pointers, which the caller has checked. The size has been found to fit.
    unsafe {
        *pitch = row;
        driver::allocate_managed(address, row * height, ATTACH_GLOBAL)
    }
}

/// For what cannot lie on the host: 32-bit addresses, say.
#[cold]
pub fn not_here(gpu: &Gpu, bytes: u64, status: Status) -> Status {
    if status != ELSEWHERE {
        return status;
    }
    refusal::refuse(gpu, pages(bytes));
    OUT_OF_MEMORY
}

unsafe fn allocate(current: Current, address: *mut DevicePtr, bytes: u64, call: impl FnOnce() -> Status) -> Status {
    let Current { gpu, id, .. } = current;
    let most = rounded_pages(bytes, GRANULE);
    let claimed = claim(gpu, most);
    // A small one may yet fit between others.
    if !claimed && bytes > SMALL {
        return refuse(gpu, most);
    }
    let spill = &gpu.charge.spill;
    let status = call();
    if status != SUCCESS {
        if claimed {
            spill.finish(&gpu.account.spilled, most, 0);
        }
        return status;
    }
    // SAFETY: the driver has just written it.
    let given = unsafe { *address };
    let block = Block { count: 1, granules: bytes.div_ceil(GRANULE) as u32, context: id, kind: Kind::Spilled };
    IN_USE.store(true, Relaxed);
    let joined = linear::note(given, block) == Entered::Joined;
    // A block that does not fit is charged until it is given back: nothing of it has been touched.
    if claimed || (!joined && spill.begin(&gpu.account.spilled, most, u64::MAX).is_ok()) {
        spill.finish(&gpu.account.spilled, most, if joined { 0 } else { most });
    }
    if (claimed || joined) && keep(gpu, given, bytes) {
        announce(gpu, bytes);
        return SUCCESS;
    }
    // SAFETY: the allocation was just made, and the program is about to hear that it was not.
    linear::free_with(given, || unsafe { driver::free(given) });
    refuse(gpu, most)
}

/// Makes managed memory live on the host, where the GPU reaches it, if it is in a block that is charged there: small allocations of a
/// program's own managed memory share blocks with what was spilled. Whether it does what its block does.
pub fn keep(gpu: &Gpu, address: DevicePtr, bytes: u64) -> bool {
    let advise = |advice, device| {
        // SAFETY: an allocation that was just made.
        unsafe { driver::advise(address, bytes as usize, advice, device) == SUCCESS }
    };
    !is_spilled(address) || (advise(SET_PREFERRED_LOCATION, DEVICE_CPU) && advise(SET_ACCESSED_BY, gpu.device))
}

/// Frees managed memory when a stream has come so far. The driver does that only at once (`CUDA_ERROR_NOT_SUPPORTED` on driver 580), so
/// the stream is waited for.
#[cold]
pub fn free_after(stream: Handle, address: DevicePtr) -> Status {
    let _relaxed = captures::leave_alone();
    // SAFETY: the program's own arguments.
    unsafe {
        match driver::stream_synchronize(stream) {
            SUCCESS => driver::free(address),
            status => status,
        }
    }
}

fn announce(gpu: &Gpu, bytes: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        log::line(
            LogLevel::Warn,
            format_args!(
                "{}: {} MiB did not fit into the container's {} MiB: they lie on the host, where the GPU is slower to reach them, and so \
                 will more, up to {} MiB",
                gpu.uuid,
                (bytes >> 20).max(1),
                gpu.memory_limit().unwrap_or(0) >> 20,
                (ceiling(gpu) * PAGE) >> 20,
            ),
        );
    }
}

fn refuse(gpu: &Gpu, pages: u32) -> Status {
    let mib = |pages: u64| (pages * PAGE) >> 20;
    let (spilled, ceiling) = (mib(gpu.account.spilled.pages()), mib(ceiling(gpu)));
    refusal::refuse_with(gpu, pages, format_args!("; on the host it holds {spilled} of {ceiling} MiB"));
    OUT_OF_MEMORY
}

/// Whether an allocation that begins here lies on the host.
pub fn is_spilled(base: DevicePtr) -> bool {
    address_map::get(base).is_some_and(|block| block.kind == Kind::Spilled)
}

/// Says why another process cannot have this memory, if that is so.
pub fn cannot_be_shared(address: DevicePtr) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if is_in_use() && is_spilled(address) && !SAID.swap(true, Relaxed) {
        log::line(LogLevel::Warn, format_args!("memory that lies on the host (oversubscription) cannot be opened by other processes"));
    }
}

/// Takes pages of the host's part of the account.
fn claim(gpu: &Gpu, pages: u32) -> bool {
    let begin = || gpu.charge.spill.begin(&gpu.account.spilled, pages, ceiling(gpu)).is_ok();
    begin() || {
        recover(gpu);
        begin()
    }
}
