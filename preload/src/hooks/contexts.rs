//! Contexts: what making one costs, and what destroying one gives back.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::hooks::pools;
use crate::loader::driver;
use crate::memory::admission::claim::claim;
use crate::memory::admission::{claim, refusal};
use crate::memory::ledger::{account, changes};
use crate::memory::objects::context_limits::{limit_now, resident_threads};
use crate::memory::objects::context_table::{Current, Known};
use crate::memory::objects::{address_map, arrays, checked_functions, context_table, heap, libraries, linear};
use crate::memory::reconcile::overhead;
use crate::os::lock::Exclusive;
use crate::session;
use crate::session::{Gpu, State};
use vgpu_cuda_abi::cuda::{
    Device, Handle, LIMIT_MALLOC_HEAP_SIZE, LIMIT_PRINTF_FIFO_SIZE, LIMIT_STACK_SIZE, OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, Status,
};

/// Makes a context with `call`: takes what it is known to cost, or a guess, and charges what NVML says it did. `handle` says which it is;
/// `undo` says whether it is gone: another thread may have got hold of it meanwhile, and have memory in it.
fn make(device: Device, call: impl FnOnce() -> Status, handle: impl FnOnce() -> Handle, undo: impl FnOnce() -> bool) -> Status {
    let session = match session::current() {
        State::Ready(session) => session,
        State::NotYet => return call(),
        State::Refused => return OPERATING_SYSTEM,
    };
    let Some(gpu) = session.gpu(device) else { return call() };
    let known = gpu.context_pages();
    let slot = session.membership.slot();
    if known.is_none() {
        slot.making_context.fetch_add(1, AcqRel);
    }
    let made = || {
        if known.is_none() {
            slot.making_context.fetch_sub(1, AcqRel);
        }
    };
    // A guess larger than the limit must not refuse a context that might fit.
    let most = u32::try_from(gpu.limit_pages()).unwrap_or(u32::MAX);
    let claim = match claim::claim_for_context(
        gpu,
        known.unwrap_or(pages(overhead::CONTEXT_GUESS)).min(if known.is_some() { u32::MAX } else { most }),
    ) {
        Ok(claim) => claim,
        Err(status) => {
            made();
            return status;
        }
    };
    if context_table::sole().is_some() {
        // It can be used before we hear of it.
        context_table::has_others();
    }
    let status = call();
    if status != SUCCESS {
        claim.drop_all();
        made();
        return status;
    }
    let cost = known.unwrap_or_else(|| {
        let measured = overhead::uncharged(gpu).filter(|&cost| cost != 0);
        if let Some(cost) = measured {
            gpu.account.context_pages.store(cost, Relaxed);
        }
        measured.unwrap_or(pages(overhead::CONTEXT_GUESS).min(most))
    });
    claim.settle(cost);
    account::add_overhead(gpu, cost);
    made();
    let context = handle();
    context_table::remember(context, gpu, cost);
    if gpu.account.total.pages() > gpu.limit_pages() {
        changes::together(|| {
            if undo()
                && let Some((id, known)) = context_table::find(context)
            {
                give_up(id, known);
            }
        });
        overhead::reconcile(gpu);
        refusal::refuse(gpu, cost);
        return OUT_OF_MEMORY;
    }
    SUCCESS
}

/// Held by the thread that makes a device's primary context.
static MAKING: [Exclusive; vgpu_region::MAX_GPUS] = [const { Exclusive::new() }; vgpu_region::MAX_GPUS];
/// In nanoseconds; making one takes a fifth of a second.
const PATIENCE: u64 = 10_000_000_000;

/// `cuDevicePrimaryCtxRetain`
pub unsafe fn retain_primary(real: unsafe extern "C" fn(*mut Handle, Device) -> Status, context: *mut Handle, device: Device) -> Status {
    // SAFETY: the program's own arguments, and `*context` is read only after success.
    unsafe {
        if context.is_null() || is_active(device) {
            return real(context, device);
        }
        // Several threads may start at once: one makes the context, and the others get it.
        let _making = MAKING.get(device as usize).map(|one| one.take(PATIENCE));
        if is_active(device) {
            return real(context, device);
        }
        let undo = || {
            driver::primary_release(device);
            !is_active(device)
        };
        make(device, || real(context, device), || *context, undo)
    }
}

fn is_active(device: Device) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes two integers.
    unsafe { driver::primary_state(device, &raw mut flags, &raw mut active) == SUCCESS && active != 0 }
}

/// `cuDevicePrimaryCtxRelease` and `cuDevicePrimaryCtxReset`
pub unsafe fn release_primary(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    let was_active = is_active(device);
    let mut handle = core::ptr::null_mut();
    if was_active {
        handle = primary(device);
    }
    // Others may go on using it, so its record stays until it is gone; and nobody makes the next one before.
    let _making = MAKING.get(device as usize).map(|one| one.take(PATIENCE));
    let mut is_gone = false;
    let status = changes::together(|| {
        // SAFETY: the program's own argument.
        let status = unsafe { real(device) };
        is_gone = status == SUCCESS && was_active && !is_active(device);
        if is_gone && let Some((id, known)) = context_table::find(handle) {
            give_up(id, known);
        }
        status
    });
    if is_gone && let Some(gpu) = session::ready().and_then(|session| session.gpu(device)) {
        pools::forget_device(gpu);
    }
    status
}

/// A device's primary context; null while it has none.
pub fn active_primary(device: Device) -> Handle {
    if is_active(device) { primary(device) } else { core::ptr::null_mut() }
}

/// The handle of an active primary context: by retaining and releasing it once more.
fn primary(device: Device) -> Handle {
    let mut handle = core::ptr::null_mut();
    // SAFETY: the driver writes one handle; the second call undoes the first.
    unsafe {
        if driver::primary_retain(&raw mut handle, device) == SUCCESS {
            driver::primary_release(device);
        }
    }
    handle
}

/// `cuCtxCreate` and `cuCtxCreate_v2`
pub unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, u32, Device) -> Status,
    context: *mut Handle,
    flags: u32,
    device: Device,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { create_with(context, device, || real(context, flags, device)) }
}

/// `cuCtxCreate_v3`
pub unsafe fn create_v3(
    real: unsafe extern "C" fn(*mut Handle, *mut core::ffi::c_void, i32, u32, Device) -> Status,
    context: *mut Handle,
    parameters: *mut core::ffi::c_void,
    count: i32,
    flags: u32,
    device: Device,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { create_with(context, device, || real(context, parameters, count, flags, device)) }
}

/// `cuCtxCreate_v4`
pub unsafe fn create_v4(
    real: unsafe extern "C" fn(*mut Handle, *mut core::ffi::c_void, u32, Device) -> Status,
    context: *mut Handle,
    parameters: *mut core::ffi::c_void,
    flags: u32,
    device: Device,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { create_with(context, device, || real(context, parameters, flags, device)) }
}

/// Makes a context with `call`.
pub unsafe fn create_with(context: *mut Handle, device: Device, call: impl FnOnce() -> Status) -> Status {
    if context.is_null() {
        return call();
    }
    // SAFETY: `*context` is read only after success.
    unsafe {
        make(
            device,
            call,
            || *context,
            || {
                driver::context_destroy(*context);
                *context = core::ptr::null_mut();
                true
            },
        )
    }
}

/// `cuCtxDestroy` and `cuCtxDestroy_v2`
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, context: Handle) -> Status {
    // SAFETY: the program's own argument.
    let call = || unsafe { real(context) };
    let Some((id, known)) = context_table::find(context) else { return call() };
    // Its record is nobody's from here on: the driver may give the handle to another thread before what was in this one is given back.
    known.hide();
    let status = changes::together(|| {
        let status = call();
        if status == SUCCESS {
            give_up(id, known)
        } else {
            known.show(context)
        }
        status
    });
    look_at_the_rest(id);
    status
}

/// A context's modules, stacks and the like are gone with it; only NVML can tell how much that was.
fn look_at_the_rest(id: u8) {
    if let Some(gpu) = context_table::gpu_of(id).filter(|gpu| gpu.charge.overhead.load(Relaxed) > context_table::costs(gpu)) {
        overhead::reconcile(gpu);
    }
}

/// Gives back a destroyed context's cost, and what was allocated in it.
pub fn forget(handle: Handle) {
    if let Some((id, known)) = context_table::find(handle) {
        changes::together(|| give_up(id, known));
        look_at_the_rest(id);
    }
}

fn give_up(id: u8, known: &Known) {
    let Some(gpu) = context_table::gpu_of(id) else { return };
    address_map::for_each(|address, block| {
        if block.context == id {
            address_map::take_of(address, id).into_iter().for_each(|block| linear::give_back(gpu, block));
        }
    });
    arrays::forget_context(gpu, id);
    libraries::forget_context(id);
    checked_functions::forget();
    account::release_overhead(gpu, known.cost.swap(0, AcqRel));
    known.forget();
}

/// `cuCtxSetLimit`: stack, heap and printf buffer are device memory, and known before.
pub unsafe fn set_limit(real: unsafe extern "C" fn(i32, usize) -> Status, limit: i32, value: usize) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(limit, value) };
    let Ok(Current { gpu, known, .. }) = context_table::current() else { return call() };
    match (limit, known) {
        (LIMIT_STACK_SIZE, _) => set_stack(gpu, value, call),
        (LIMIT_MALLOC_HEAP_SIZE, Some(known)) => set_promise(gpu, &known.promised[0], heap::EXTRA, limit, value, call),
        (LIMIT_PRINTF_FIFO_SIZE, Some(known)) => set_promise(gpu, &known.promised[1], 0, limit, value, call),
        // A context beyond the table: what cannot be kept account of cannot be had.
        (LIMIT_MALLOC_HEAP_SIZE | LIMIT_PRINTF_FIFO_SIZE, None) if value as u64 > limit_now(limit) => OUT_OF_MEMORY,
        _ => call(),
    }
}

/// Stacks are taken at once, one for each thread that the device can hold.
fn set_stack(gpu: &Gpu, value: usize, call: impl FnOnce() -> Status) -> Status {
    let (before, threads) = (limit_now(LIMIT_STACK_SIZE), resident_threads(gpu.device));
    let claim = match claim(gpu, pages((value as u64).saturating_sub(before).saturating_mul(threads))) {
        Ok(claim) => claim,
        Err(status) => return status,
    };
    let status = call();
    let after = limit_now(LIMIT_STACK_SIZE);
    let grown = pages(after.saturating_sub(before).saturating_mul(threads));
    claim.settle(grown);
    account::add_overhead(gpu, grown);
    checked_functions::forget();
    let shrunk = pages(before.saturating_sub(after).saturating_mul(threads));
    account::release_overhead(gpu, shrunk);
    status
}

/// Heap and printf buffer are taken whole, and `extra` pages, when a kernel first uses them, which nothing could refuse then.
fn set_promise(gpu: &Gpu, promised: &AtomicU32, extra: u32, limit: i32, value: usize, call: impl FnOnce() -> Status) -> Status {
    let before = promised.load(Relaxed);
    let whole = |value: u64| pages(value).saturating_add(extra);
    let claim = match claim(gpu, whole(value as u64).saturating_sub(before)) {
        Ok(claim) => claim,
        Err(status) => return status,
    };
    let status = call();
    if status != SUCCESS {
        claim.drop_all();
        return status;
    }
    let after = whole(limit_now(limit));
    promised.store(after, Relaxed);
    let grown = after.saturating_sub(before);
    claim.settle(grown);
    account::add_overhead(gpu, grown);
    account::release_overhead(gpu, before.saturating_sub(after));
    status
}
