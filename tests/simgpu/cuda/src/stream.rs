//! Streams: creation, queries, synchronization, callbacks.

pub mod capture;
mod event;
mod mem_ops;
pub mod queues;
pub mod resolve;
pub mod submit;
mod worker;

use std::ffi::c_void;

use cudarc::driver::sys::{CUcontext, CUevent, CUhostFn, CUresult, CUstream};

use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_HANDLE, INVALID_VALUE, put, put_optional};
use crate::handles::PER_THREAD;
use crate::handles::{as_pointer, new_handle};
use crate::objects::{HostCall, Queue, StreamKind, Work};
use queues::{drain, lock_queues, wait_for};
use resolve::resolve;
use submit::{reclaim_after_wait, submit, submit_and_wait};

/// Waits for the streams of a context, then destroys its streams and events.
pub fn destroy_context_streams(context: usize) -> CudaResult {
    drain(|queue| queue.context == context)?;
    let mut queues = lock_queues()?;
    queues.streams.retain(|_, queue| queue.context != context);
    queues.per_thread.retain(|&(owner, _), _| owner != context);
    queues.events.drain_if(|_, event| event.context == context);
    Ok(())
}

/// Creates a stream in the current context.
pub fn create(out: *mut CUstream, flags: u32, priority: i32) -> CudaResult {
    let driver = driver()?;
    let (context, ordinal) = state()?.current_gpu()?;
    if out.is_null() || flags > 1 {
        return Err(INVALID_VALUE);
    }
    let gpu = driver.gpu_index(ordinal)?;
    let mut queues = lock_queues()?;
    queues.ids += 1;
    let kind = if flags == 1 { StreamKind::NonBlocking } else { StreamKind::Blocking };
    let queue = Queue::new(gpu, context, kind, priority.clamp(-5, 0), queues.ids);
    let handle = new_handle();
    queues.streams.insert(handle, queue);
    put(out, as_pointer(handle))
}

fn destroy(stream: CUstream) -> CudaResult {
    if stream.addr() <= PER_THREAD {
        return Err(INVALID_HANDLE);
    }
    let key = resolve(stream)?;
    let last = lock_queues()?.sequence;
    wait_for(key, last)?;
    lock_queues()?.streams.remove(&key);
    Ok(())
}

fn synchronize_context(context: usize) -> CudaResult {
    capture::reject_capturing_context(context)?;
    drain(|queue| queue.context == context)?;
    reclaim_after_wait()
}

fn with_queue<T>(stream: CUstream, read: impl FnOnce(&Queue) -> T) -> CudaResult<T> {
    let key = resolve(stream)?;
    lock_queues()?.streams.get(&key).map(read).ok_or(INVALID_HANDLE)
}

/// `CUstreamCallback` with its arguments.
struct Callback {
    function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    stream: CUstream,
    data: *mut c_void,
}

unsafe extern "C" fn call_back(callback: *mut c_void) {
    // SAFETY: `cuStreamAddCallback` leaked the box for this one call.
    let callback = unsafe { Box::from_raw(callback.cast::<Callback>()) };
    // SAFETY: the program registered the function to be called with these arguments.
    unsafe { (callback.function)(callback.stream, CUresult::CUDA_SUCCESS, callback.data) };
}

fn call_host(stream: CUstream, function: CUhostFn, data: *mut c_void) -> CudaResult {
    if function.is_none() {
        return Err(INVALID_VALUE);
    }
    submit(stream, Work::HostCall(HostCall { function, data: data.expose_provenance() }))
}

api! {
    fn cuStreamCreate(out: *mut CUstream, flags: u32) { create(out, flags, 0) }
    fn cuStreamCreateWithPriority(out: *mut CUstream, flags: u32, priority: i32) { create(out, flags, priority) }
    fn cuStreamDestroy(stream: CUstream) { destroy(stream) }
    fn cuStreamDestroy_v2(stream: CUstream) { destroy(stream) }

    fn cuStreamQuery [cuStreamQuery_ptsz stream] (stream: CUstream) {
        let key = resolve(stream)?;
        capture::reject_capturing_stream(key)?;
        capture::reject_unsafe_call()?;
        let queues = lock_queues()?;
        let queue = queues.streams.get(&key).ok_or(INVALID_HANDLE)?;
        let others = queue.kind == StreamKind::Legacy
            && queues.streams.values().any(|other| {
                other.context == queue.context && other.kind == StreamKind::Blocking && !other.ops.is_empty()
            });
        if queue.ops.is_empty() && !others { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn cuStreamSynchronize [cuStreamSynchronize_ptsz stream] (stream: CUstream) {
        capture::reject_unsafe_call()?;
        submit_and_wait(stream, Work::Marker)?;
        reclaim_after_wait()
    }

    fn cuStreamWaitEvent [cuStreamWaitEvent_ptsz stream] (stream: CUstream, event: CUevent, flags: u32) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let number = lock_queues()?.events.get(event)?.recorded;
        submit(stream, Work::WaitEvent { event: event.addr(), number })
    }

    fn cuStreamAddCallback [cuStreamAddCallback_ptsz stream]
        (stream: CUstream, function: Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>, data: *mut c_void, flags: u32) {
        let function = function.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        let callback = Box::into_raw(Box::new(Callback { function, stream, data }));
        submit(stream, Work::HostCall(HostCall { function: Some(call_back), data: callback.expose_provenance() }))
    }

    fn cuLaunchHostFunc [cuLaunchHostFunc_ptsz stream] (stream: CUstream, function: CUhostFn, data: *mut c_void) {
        call_host(stream, function, data)
    }

    fn cuLaunchHostFunc_v2 [cuLaunchHostFunc_v2_ptsz stream] (stream: CUstream, function: CUhostFn, data: *mut c_void, _mode: u32) {
        call_host(stream, function, data)
    }

    fn cuStreamGetFlags [cuStreamGetFlags_ptsz stream] (stream: CUstream, out: *mut u32) {
        put(out, with_queue(stream, |queue| u32::from(queue.kind == StreamKind::NonBlocking))?)
    }

    fn cuStreamGetPriority [cuStreamGetPriority_ptsz stream] (stream: CUstream, out: *mut i32) {
        put(out, with_queue(stream, |queue| queue.priority)?)
    }

    fn cuStreamGetId [cuStreamGetId_ptsz stream] (stream: CUstream, out: *mut u64) {
        put(out, with_queue(stream, |queue| queue.id)?)
    }

    fn cuStreamGetCtx [cuStreamGetCtx_ptsz stream] (stream: CUstream, out: *mut CUcontext) {
        put(out, as_pointer(with_queue(stream, |queue| queue.context)?))
    }

    fn cuStreamGetCtx_v2 [cuStreamGetCtx_v2_ptsz stream] (stream: CUstream, out: *mut CUcontext, green: *mut *mut c_void) {
        put_optional(green, std::ptr::null_mut());
        put(out, as_pointer(with_queue(stream, |queue| queue.context)?))
    }

    fn cuStreamGetDevice [cuStreamGetDevice_ptsz stream] (stream: CUstream, out: *mut i32) {
        let gpu = with_queue(stream, |queue| queue.gpu)?;
        let ordinal = driver()?.visible_gpus.iter().position(|&visible| visible == gpu);
        put(out, ordinal.unwrap_or(0) as i32)
    }

    fn cuStreamAttachMemAsync [cuStreamAttachMemAsync_ptsz stream] (stream: CUstream, _address: u64, _length: usize, _flags: u32) {
        submit(stream, Work::Marker)
    }

    fn cuCtxSynchronize() {
        let context = state()?.current()?;
        synchronize_context(context)
    }

    fn cuCtxSynchronize_v2(context: CUcontext) {
        let context = state()?.context_or_current(context)?;
        synchronize_context(context)
    }
}
