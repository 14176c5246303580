//! Waits of the program for its own work. The work is measured up to the wait, and the pause that follows begins there.

use crate::compute::cuda_engine::Cuda;
use crate::compute::streams;
use crate::hooks::ordered;
use crate::loader::driver;
use vgpu_cuda_abi::cuda::{Handle, Status, effective_stream};
use vgpu_gpu_limiter::batch_close;

/// `cuStreamSynchronize`. Ends the stream's batch of launches.
#[inline]
pub unsafe fn stream<const PER_THREAD: bool>(real: unsafe extern "C" fn(Handle) -> Status, stream: Handle) -> Status {
    // SAFETY: the program's own argument.
    let wait = || unsafe { ordered::after_wait(real, stream) };
    let found = streams::known().and_then(|state| state.find(effective_stream::<PER_THREAD>(stream)));
    let Some((known, meter)) = found else { return wait() };
    let engine = Cuda { context: meter.context() };
    batch_close::before_wait(&engine, meter, [known].into_iter());
    let status = wait();
    batch_close::after_wait(&engine, meter, [known].into_iter());
    status
}

/// `cuEventSynchronize`. Ends no batch: the event's stream is unknown, and programs that wait for events keep launching.
#[inline]
pub unsafe fn event(real: unsafe extern "C" fn(Handle) -> Status, event: Handle) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { ordered::after_wait(real, event) };
    if let Some(meter) = streams::known().and_then(|state| state.known_meter(driver::current_context())) {
        batch_close::after_event(&Cuda { context: meter.context() }, meter);
    }
    status
}

/// `cuCtxSynchronize_v2`
#[inline]
pub unsafe fn context_v2(real: unsafe extern "C" fn(Handle) -> Status, context: Handle) -> Status {
    // SAFETY: the program's own argument.
    wait_for_context(context, || unsafe { ordered::after_wait(real, context) })
}

/// `cuCtxSynchronize`
#[inline]
pub unsafe fn context(real: unsafe extern "C" fn() -> Status) -> Status {
    // SAFETY: the call takes nothing.
    wait_for_context(driver::current_context(), || unsafe { ordered::after_wait_context(real) })
}

/// Waits for a context with `wait`. Ends the batches of all its streams.
#[inline]
fn wait_for_context(context: Handle, wait: impl FnOnce() -> Status) -> Status {
    let Some(meter) = streams::known().and_then(|state| state.known_meter(context)) else { return wait() };
    let engine = Cuda { context: meter.context() };
    batch_close::before_wait(&engine, meter, meter.streams());
    let status = wait();
    batch_close::after_wait(&engine, meter, meter.streams());
    status
}
