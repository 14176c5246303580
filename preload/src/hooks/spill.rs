//! Oversubscription: allocations that do not fit into the share lie on the host, up to a ceiling, where the operator and the container's
//! request allow it.
//!
//! Such an allocation is managed memory that prefers the host and is mapped into the GPU. The GPU reads and writes it over the bus, and no
//! page moves to the device, whatever kernels, copies, fills and atomic operations do (seen on driver 580, H200: NVML's figures for the
//! device and for the process do not change). Prefetches to a device go to the host instead, and advice about its location is ignored
//! (`hooks::host_moves`).
//!
//! It has an account of its own: [`vgpu_region::region::GpuAccount::spilled`].

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::{PAGE, pages};
use vgpu_region::limits::LogLevel;

use crate::loader::driver;
use crate::memory::admission::refusal;
use crate::memory::granules::{GRANULE, SMALL, rounded_pages};
use crate::memory::ledger::spilled::{IN_USE, MAY_SPILL, ceiling, is_in_use};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::{address_map, captures, linear};
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

/// Answers an allocation of `bytes` that the device did not give; `status` says why. If it may lie on the host, `call` makes it there as
/// managed memory.
#[cold]
pub unsafe fn instead(current: Current, address: *mut DevicePtr, bytes: u64, status: Status, call: impl FnOnce() -> Status) -> Status {
    // SAFETY: as the caller promises.
    unsafe { refused(address, if status == MAY_SPILL { allocate(current, address, bytes, call) } else { status }) }
}

/// Writes a null address for a refused allocation, as the driver does (seen on driver 580). Returns `status`.
pub unsafe fn refused(address: *mut DevicePtr, status: Status) -> Status {
    if status == OUT_OF_MEMORY {
        // SAFETY: as the caller promises.
        unsafe { *address = 0 };
    }
    status
}

/// Makes managed memory.
pub unsafe fn make(address: *mut DevicePtr, bytes: usize) -> Status {
    // SAFETY: as the caller promises.
    unsafe { driver::allocate_managed(address, bytes, ATTACH_GLOBAL) }
}

/// Makes memory of rows as `cuMemAllocPitch` does, with `make`, which gets its size in bytes.
pub unsafe fn make_pitched(pitch: *mut usize, (width, height): (usize, usize), element: u32, make: impl FnOnce(usize) -> Status) -> Status {
    if ![4, 8, 16].contains(&element) {
        return INVALID_VALUE;
    }
    let row = width.next_multiple_of(linear::PITCH as usize);
    // SAFETY: as the caller promises. The size has been found to fit.
    unsafe { *pitch = row };
    make(row * height)
}

/// Refuses what cannot lie on the host, such as 32-bit addresses. Returns other statuses as they are.
#[cold]
pub fn refuse_host(gpu: &Gpu, bytes: u64, status: Status) -> Status {
    if status != MAY_SPILL {
        return status;
    }
    refusal::refuse(gpu, pages(bytes));
    OUT_OF_MEMORY
}

/// Allocates on the host. A copy of [`acquire`](crate::memory::admission::acquire) for the other account: a small allocation needs no claim
/// if it shares a block, and the limit is the ceiling.
unsafe fn allocate(Current { gpu, id, .. }: Current, address: *mut DevicePtr, bytes: u64, call: impl FnOnce() -> Status) -> Status {
    let most = rounded_pages(bytes, GRANULE);
    let is_claimed = claim(gpu, most);
    if !is_claimed && bytes > SMALL {
        return refuse(gpu, most);
    }
    let settle = |pages| gpu.charge.spill.finish(&gpu.account.spilled, most, pages);
    let status = call();
    if status != SUCCESS {
        if is_claimed {
            settle(0);
        }
        return status;
    }
    // SAFETY: the driver has just written it.
    let given = unsafe { *address };
    let block = Block { count: 1, granules: bytes.div_ceil(GRANULE) as u32, context: id, kind: Kind::Spilled };
    IN_USE.store(true, Relaxed);
    let is_shared = linear::record(given, block) == Entered::Joined;
    // A block that does not fit is charged until it is given back: nothing of it has been touched.
    if is_claimed || (!is_shared && gpu.charge.spill.begin(&gpu.account.spilled, most, u64::MAX).is_ok()) {
        settle(if is_shared { 0 } else { most });
    }
    if (is_claimed || is_shared) && stay_on_host(gpu, given, bytes) {
        announce(gpu, bytes);
        return SUCCESS;
    }
    // SAFETY: the allocation was just made, and the program has not seen it.
    linear::free_with(given, || unsafe { driver::free(given) });
    refuse(gpu, most)
}

/// Keeps managed memory on the host, mapped into the GPU, if its block is charged there: a program's own small managed allocations share
/// blocks with spilled ones. Returns false if the driver refused.
pub fn stay_on_host(gpu: &Gpu, address: DevicePtr, bytes: u64) -> bool {
    let advise = |advice, device| {
        // SAFETY: an allocation that was just made.
        unsafe { driver::advise(address, bytes as usize, advice, device) == SUCCESS }
    };
    !is_spilled(address) || (advise(SET_PREFERRED_LOCATION, DEVICE_CPU) && advise(SET_ACCESSED_BY, gpu.device))
}

/// Frees memory with `free` in stream order, where it can be freed only at once: managed memory (`CUDA_ERROR_NOT_SUPPORTED` on driver 580), and
/// memory that can move. So this waits for the stream.
#[cold]
pub fn free_after(stream: Handle, free: impl FnOnce() -> Status) -> Status {
    let _relaxed = captures::leave_alone();
    // SAFETY: the program's own arguments.
    unsafe {
        match driver::stream_synchronize(stream) {
            SUCCESS => free(),
            status => status,
        }
    }
}

/// Logs once that memory lies on the host.
fn announce(gpu: &Gpu, bytes: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        log::line(
            LogLevel::Warn,
            format_args!(
                "{}: {} MiB did not fit into the container's {} MiB and lie on the host, where the GPU is slower to reach them; the host may \
                 hold up to {} MiB",
                gpu.uuid,
                (bytes >> 20).max(1),
                gpu.memory_limit().unwrap_or(0) >> 20,
                (ceiling(gpu) * PAGE) >> 20,
            ),
        );
    }
}

/// Refuses `pages` for which neither the GPU's limit nor the host's has room.
fn refuse(gpu: &Gpu, pages: u32) -> Status {
    let mib = |pages: u64| (pages * PAGE) >> 20;
    let (spilled, ceiling) = (mib(gpu.account.spilled.pages()), mib(ceiling(gpu)));
    refusal::refuse_with(gpu, pages, format_args!("; on the host it holds {spilled} of {ceiling} MiB"));
    OUT_OF_MEMORY
}

/// Returns true if the allocation that begins at `base` lies on the host.
pub fn is_spilled(base: DevicePtr) -> bool {
    address_map::get(base).is_some_and(|block| block.kind == Kind::Spilled)
}

/// Logs why another process cannot open this memory, if it lies on the host.
pub fn cannot_be_shared(address: DevicePtr) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if is_in_use() && is_spilled(address) && !SAID.swap(true, Relaxed) {
        log::line(LogLevel::Warn, format_args!("memory that lies on the host (oversubscription) cannot be opened by other processes"));
    }
}

/// Claims pages of the host's account. Returns false if the ceiling has no room for them.
fn claim(gpu: &Gpu, pages: u32) -> bool {
    let begin = || gpu.charge.spill.begin(&gpu.account.spilled, pages, ceiling(gpu)).is_ok();
    begin() || {
        recover(gpu);
        begin()
    }
}
