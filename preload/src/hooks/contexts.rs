//! Creation and destruction of contexts: what a context costs, and what its end gives back.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_region::ledger::pages;

use crate::hooks::pools;
use crate::loader::driver;
use crate::memory::admission::acquire::{Estimate, Operation, Taken, acquire};
use crate::memory::admission::target::with_device;
use crate::memory::ledger::{account, changes};
use crate::memory::objects::context_table::Context;
use crate::memory::objects::{address_map, arrays, checked_functions, context_table, libraries, linear};
use crate::memory::reconcile::overhead;
use crate::os::lock::{Exclusive, Held};
use crate::residency::room::with_room;
use crate::residency::{blocks, gate, within};
use crate::session;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{Device, Handle, SUCCESS, Status};

/// Marks this process as making a context of unknown cost, until it is dropped. Other processes wait for the measured cost.
struct Measuring(Option<&'static AtomicU32>);

impl Measuring {
    /// Sets the mark if the cost is unknown.
    fn begin(is_known: bool) -> Self {
        let session = session::ready().filter(|_| !is_known);
        Self(session.map(|session| &session.membership.slot().making_context).inspect(|count| _ = count.fetch_add(1, AcqRel)))
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, AcqRel);
        }
    }
}

/// Makes a context with `call`: claims its known cost, or a guess, and charges what NVML measures. `handle` returns the new context.
/// `undo` returns whether the context is gone: another thread may have retained it meanwhile and have memory in it.
fn make(call: impl Fn() -> Status, device: Device, handle: impl Fn() -> Handle, undo: impl FnOnce() -> bool) -> Status {
    let call = || with_room(Some(device), &call);
    with_device(device, call, |gpu, call| {
        let known = gpu.context_pages();
        // Until the claim is settled at the measured cost: others would take the guess for it.
        let _measuring = Measuring::begin(known.is_some());
        // A guess larger than the limit must not refuse a context that might fit.
        let guess = pages(overhead::CONTEXT_GUESS).min(u32::try_from(gpu.limit_pages()).unwrap_or(u32::MAX));
        acquire(
            gpu,
            Operation {
                estimate: Estimate::Context(known.unwrap_or(guess)),
                call: || {
                    if context_table::sole().is_some() {
                        // Another thread can use the new context before this one records it.
                        context_table::has_others();
                    }
                    call()
                },
                record: || {
                    let cost = known.unwrap_or_else(|| measure(gpu).unwrap_or(guess));
                    if context_table::record(context_table::remember(handle(), gpu, cost)).is_none() {
                        within::stay_for_good();
                    }
                    Some(Taken::Overhead(cost))
                },
                undo: || {
                    let context = handle();
                    changes::together(|| {
                        if undo()
                            && let Some((id, known)) = context_table::find(context)
                        {
                            give_up(id, known);
                        }
                    });
                },
            },
        )
    })
}

/// Measures the cost of the context that was just made, in pages, and publishes it for the next ones. `None` if NVML cannot tell.
fn measure(gpu: &Gpu) -> Option<u32> {
    let cost = overhead::uncharged(gpu).filter(|&cost| cost != 0)?;
    gpu.account.context_pages.store(cost, Relaxed);
    Some(cost)
}

/// Locks for making and releasing the primary context of each device.
static PRIMARY: [Exclusive; vgpu_region::MAX_GPUS] = [const { Exclusive::new() }; vgpu_region::MAX_GPUS];
/// Longest wait for such a lock, in nanoseconds. Making a context takes 0.2 s.
const PATIENCE: u64 = 10_000_000_000;

/// Waits for other threads of this process that make or release the device's primary context.
fn lock_primary(device: Device) -> Option<Held<'static>> {
    PRIMARY.get(device as usize).map(|lock| lock.take(PATIENCE))
}

/// Retains a device's primary context. Of several threads that start at once, one makes the context and the others get it.
pub unsafe fn retain_primary(call: impl Fn() -> Status, context: *mut Handle, device: Device) -> Status {
    if context.is_null() || is_active(device) {
        return call();
    }
    let _held = lock_primary(device);
    if is_active(device) {
        return call();
    }
    let undo = || {
        // SAFETY: undoes the retain that was just made.
        unsafe { driver::primary_release(device) };
        !is_active(device)
    };
    // SAFETY: read only after success, when the driver has written it.
    make(call, device, || unsafe { *context }, undo)
}

/// Returns whether a device's primary context exists.
fn is_active(device: Device) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes two integers.
    unsafe { driver::primary_state(device, &raw mut flags, &raw mut active) == SUCCESS && active != 0 }
}

/// Releases or resets a device's primary context with `call`. Other users may keep it, so its record stays until the context is gone, and
/// no thread makes the next one before that.
pub fn release_primary(call: impl FnOnce() -> Status, device: Device) -> Status {
    let (was_active, context) = (is_active(device), active_primary(device));
    // Before the lock: memory that comes back may wait for room for long.
    let _still = gate::keep_still();
    let _held = lock_primary(device);
    let mut is_gone = false;
    let status = changes::together(|| {
        let status = call();
        is_gone = status == SUCCESS && was_active && !is_active(device);
        if is_gone && let Some((id, known)) = context_table::find(context) {
            give_up(id, known);
        }
        status
    });
    if is_gone && let Some(gpu) = session::ready().and_then(|session| session.gpu(device)) {
        pools::forget_device(gpu);
    }
    status
}

/// Returns a device's primary context, by retaining and releasing it once more; null while it has none.
pub fn active_primary(device: Device) -> Handle {
    let mut handle = core::ptr::null_mut();
    // SAFETY: the driver writes one handle; the second call undoes the first.
    unsafe {
        if is_active(device) && driver::primary_retain(&raw mut handle, device) == SUCCESS {
            driver::primary_release(device);
        }
    }
    handle
}

/// Creates a context with `call`.
pub unsafe fn create(call: impl Fn() -> Status, context: *mut Handle, device: Device) -> Status {
    if context.is_null() {
        return call();
    }
    let undo = || {
        // The mover has seen it.
        let _still = gate::keep_still();
        // SAFETY: the context was just created, and the program has not seen it.
        unsafe { driver::discard(context, driver::context_destroy) };
        true
    };
    // SAFETY: read only after success, when the driver has written it.
    make(call, device, || unsafe { *context }, undo)
}

/// Destroys a context with `call`.
pub fn destroy(call: impl FnOnce() -> Status, context: Handle) -> Status {
    let Some((id, known)) = context_table::find(context) else { return call() };
    let still = gate::keep_still();
    // Hidden before the call: the driver may give the handle to another thread before the contents of this context are given back.
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
    drop(still);
    reconcile_rest(id);
    status
}

/// Compares the account with NVML after a context's end. Modules, stacks and the like went with the context, and only NVML can tell how
/// much that was.
fn reconcile_rest(id: u8) {
    if let Some(gpu) = context_table::gpu_of(id).filter(|gpu| gpu.charge.overhead.load(Relaxed) > context_table::costs(gpu)) {
        overhead::reconcile(gpu);
    }
}

/// Gives back a destroyed context's cost and everything that was allocated in it.
pub fn forget(handle: Handle) {
    if let Some((id, known)) = context_table::find(handle) {
        let still = gate::keep_still();
        changes::together(|| give_up(id, known));
        drop(still);
        reconcile_rest(id);
    }
}

/// Removes all records of a context that is gone, and gives back what they were charged.
fn give_up(id: u8, known: &Context) {
    let Some(gpu) = context_table::gpu_of(id) else { return };
    blocks::forget_context(id);
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
