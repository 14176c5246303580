//! Waits of the program for its own work. The work is measured up to the wait, and the pause that follows begins there.

use core::sync::atomic::Ordering::Relaxed;

use crate::compute::cuda_engine::Cuda;
use crate::compute::streams;
use crate::compute::switcher::WAITING_THREADS;
use crate::loader::driver;
use crate::memory::objects::pending_frees::{HAS_FREED, pending_frees};
use crate::memory::objects::{context_table, reservoirs};
use crate::memory::reconcile::frees::frees_have_passed;
use vgpu_cuda_abi::cuda::{Handle, SUCCESS, Status};
use vgpu_gpu_limiter::batch_close;

/// Makes a call that waits for a stream or an event, after which pools may have shrunk.
#[inline]
pub fn settle_after(wait: impl FnOnce() -> Status) -> Status {
    WAITING_THREADS.fetch_add(1, Relaxed);
    let status = wait();
    WAITING_THREADS.fetch_sub(1, Relaxed);
    reservoirs::settle_after_wait();
    status
}

/// Waits for a stream, and ends its batch of launches.
#[inline]
pub fn stream(wait: impl FnOnce() -> Status, stream: Handle) -> Status {
    let Some((known, meter)) = streams::known().and_then(|state| state.find(stream)) else { return settle_after(wait) };
    let engine = Cuda { context: meter.context };
    batch_close::before_wait(&engine, meter, [known].into_iter());
    let status = settle_after(wait);
    batch_close::after_wait(&engine, meter, [known].into_iter());
    status
}

/// Waits for an event. Ends no batch: the event's stream is unknown, and programs that wait for events keep launching.
#[inline]
pub fn event(wait: impl FnOnce() -> Status) -> Status {
    let status = settle_after(wait);
    if let Some(meter) = streams::known().and_then(|state| state.known_meter(driver::current_context())) {
        batch_close::after_event(&Cuda { context: meter.context }, meter);
    }
    status
}

/// Waits for a context, and ends the batches of all its streams.
#[inline]
pub fn context(wait: impl FnOnce() -> Status, context: Handle) -> Status {
    let Some(meter) = streams::known().and_then(|state| state.known_meter(context)) else { return settle_after(wait) };
    let engine = Cuda { context: meter.context };
    batch_close::before_wait(&engine, meter, meter.streams());
    let status = settle_after(wait);
    batch_close::after_wait(&engine, meter, meter.streams());
    status
}

/// Waits for the current context, after which stream-ordered frees have passed too.
#[inline]
pub fn current_context(wait: impl FnOnce() -> Status) -> Status {
    // Read before the wait: later frees may not have passed after it.
    let current = if HAS_FREED.load(Relaxed) { context_table::current().ok() } else { None };
    let before = current.map(|current| (current.gpu, pending_frees(current.gpu))).filter(|&(_, pending)| pending != 0);
    let status = context(wait, driver::current_context());
    if let (Some((gpu, pending)), SUCCESS) = (before, status) {
        frees_have_passed(gpu, pending);
    }
    status
}
