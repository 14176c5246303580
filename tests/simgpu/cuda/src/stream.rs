//! Streams.

pub mod event;
mod mem_ops;
pub mod queues;
pub mod work;
mod worker;

use std::ffi::c_void;

use cudarc::driver::sys::{CUcontext, CUevent, CUhostFn, CUresult, CUstream};

use crate::driver::{driver, world};
use crate::ffi::{Answer, INVALID_HANDLE, INVALID_VALUE, put, put_if};
use crate::graph::capture;
use crate::handles::{as_pointer, new_handle};
use queues::{Kind, Queue, drain, push, queues as all, wait_for};
use work::{Call, Work};

/// The handle of the per-thread default stream; 0 and 1 are the legacy stream.
const PER_THREAD: usize = 2;

/// What a null stream means in the functions for per-thread default streams.
pub fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { as_pointer(PER_THREAD) } else { stream }
}

fn thread() -> u64 {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() }
}

/// The queue behind a stream handle, made if it is a default stream that was not used yet.
pub fn resolve(stream: CUstream) -> Answer<usize> {
    let driver = driver()?;
    if stream.addr() > PER_THREAD {
        return if all()?.streams.contains_key(&stream.addr()) { Ok(stream.addr()) } else { Err(INVALID_HANDLE) };
    }
    let (context, ordinal) = world()?.current_gpu()?;
    let gpu = driver.physical(ordinal)?;
    let mut queues = all()?;
    if stream.addr() < PER_THREAD {
        if !queues.streams.contains_key(&context) {
            queues.ids += 1;
            let queue = new(gpu, context, Kind::Legacy, 0, queues.ids);
            queues.streams.insert(context, queue);
        }
        return Ok(context);
    }
    if let Some(&key) = queues.per_thread.get(&(context, thread())) {
        return Ok(key);
    }
    let key = new_handle();
    queues.ids += 1;
    let queue = new(gpu, context, Kind::Blocking, 0, queues.ids);
    queues.streams.insert(key, queue);
    queues.per_thread.insert((context, thread()), key);
    Ok(key)
}

fn new(gpu: usize, context: usize, kind: Kind, priority: i32, id: u64) -> Queue {
    Queue {
        gpu,
        context,
        kind,
        priority,
        id,
        ops: std::collections::VecDeque::new(),
        running: false,
        until: None,
        cursor: 0,
        capture: None,
    }
}

/// Gives work to a stream: to be done, or if the stream is being captured, to its graph.
pub fn submit(stream: CUstream, work: Work) -> Answer {
    let key = resolve(stream)?;
    if capture::add(key, &work)? { Ok(()) } else { push(key, work).map(|_| ()) }
}

/// Gives work to a stream and waits for it.
pub fn submit_and_wait(stream: CUstream, work: Work) -> Answer {
    let key = resolve(stream)?;
    capture::refuse(key)?;
    let sequence = push(key, work)?;
    wait_for(key, sequence)
}

/// What is given back when the host has waited.
fn after_wait() -> Answer {
    let driver = driver()?;
    let mut world = world()?;
    world.free_deferred(driver)?;
    world.trim_pools(driver)
}

/// Forgets the streams and events of a context, after their work is done.
pub fn end_of_context(context: usize) -> Answer {
    drain(|queue| queue.context == context)?;
    let mut queues = all()?;
    queues.streams.retain(|_, queue| queue.context != context);
    queues.per_thread.retain(|&(owner, _), _| owner != context);
    queues.events.drain_if(|_, event| event.context == context);
    Ok(())
}

/// Makes a stream in the current context.
pub fn create(out: *mut CUstream, flags: u32, priority: i32) -> Answer {
    let driver = driver()?;
    let (context, ordinal) = world()?.current_gpu()?;
    if out.is_null() || flags > 1 {
        return Err(INVALID_VALUE);
    }
    let gpu = driver.physical(ordinal)?;
    let mut queues = all()?;
    queues.ids += 1;
    let kind = if flags == 1 { Kind::NonBlocking } else { Kind::Blocking };
    let queue = new(gpu, context, kind, priority.clamp(-5, 0), queues.ids);
    let handle = new_handle();
    queues.streams.insert(handle, queue);
    put(out, as_pointer(handle))
}

fn destroy(stream: CUstream) -> Answer {
    if stream.addr() <= PER_THREAD {
        return Err(INVALID_HANDLE);
    }
    let key = resolve(stream)?;
    let last = all()?.sequence;
    wait_for(key, last)?;
    all()?.streams.remove(&key);
    Ok(())
}

fn synchronize_context(context: usize) -> Answer {
    capture::refuse_context(context)?;
    drain(|queue| queue.context == context)?;
    after_wait()
}

fn with<T>(stream: CUstream, read: impl FnOnce(&Queue) -> T) -> Answer<T> {
    let key = resolve(stream)?;
    all()?.streams.get(&key).map(read).ok_or(INVALID_HANDLE)
}

/// A `CUstreamCallback` with what it is called with.
struct Callback {
    function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    stream: CUstream,
    data: *mut c_void,
}

unsafe extern "C" fn call_back(callback: *mut c_void) {
    // SAFETY: made by `cuStreamAddCallback` for this one call.
    let callback = unsafe { Box::from_raw(callback.cast::<Callback>()) };
    // SAFETY: the program gave the function to be called with this.
    unsafe { (callback.function)(callback.stream, CUresult::CUDA_SUCCESS, callback.data) };
}

api! {
    fn cuStreamCreate(out: *mut CUstream, flags: u32) { create(out, flags, 0) }
    fn cuStreamCreateWithPriority(out: *mut CUstream, flags: u32, priority: i32) { create(out, flags, priority) }
    fn cuStreamDestroy(stream: CUstream) { destroy(stream) }
    fn cuStreamDestroy_v2(stream: CUstream) { destroy(stream) }

    fn cuStreamQuery [cuStreamQuery_ptsz stream] (stream: CUstream) {
        let key = resolve(stream)?;
        capture::refuse(key)?;
        capture::forbid()?;
        let queues = all()?;
        let queue = queues.streams.get(&key).ok_or(INVALID_HANDLE)?;
        let others = queue.kind == Kind::Legacy
            && queues.streams.values().any(|other| other.context == queue.context && other.kind == Kind::Blocking && !other.ops.is_empty());
        if queue.ops.is_empty() && !others { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn cuStreamSynchronize [cuStreamSynchronize_ptsz stream] (stream: CUstream) {
        capture::forbid()?;
        submit_and_wait(stream, Work::Marker)?;
        after_wait()
    }

    fn cuStreamWaitEvent [cuStreamWaitEvent_ptsz stream] (stream: CUstream, event: CUevent, flags: u32) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let number = all()?.events.get(event)?.asked;
        submit(stream, Work::Wait { event: event.addr(), number })
    }

    fn cuStreamAddCallback [cuStreamAddCallback_ptsz stream]
        (stream: CUstream, function: Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>, data: *mut c_void, flags: u32) {
        let function = function.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        let callback = Box::into_raw(Box::new(Callback { function, stream, data }));
        submit(stream, Work::Call(Call { function: Some(call_back), data: callback.expose_provenance() }))
    }

    fn cuLaunchHostFunc [cuLaunchHostFunc_ptsz stream] (stream: CUstream, function: CUhostFn, data: *mut c_void) {
        if function.is_none() {
            return Err(INVALID_VALUE);
        }
        submit(stream, Work::Call(Call { function, data: data.expose_provenance() }))
    }

    fn cuStreamGetFlags [cuStreamGetFlags_ptsz stream] (stream: CUstream, out: *mut u32) {
        put(out, with(stream, |queue| u32::from(queue.kind == Kind::NonBlocking))?)
    }

    fn cuStreamGetPriority [cuStreamGetPriority_ptsz stream] (stream: CUstream, out: *mut i32) {
        put(out, with(stream, |queue| queue.priority)?)
    }

    fn cuStreamGetId [cuStreamGetId_ptsz stream] (stream: CUstream, out: *mut u64) {
        put(out, with(stream, |queue| queue.id)?)
    }

    fn cuStreamGetCtx [cuStreamGetCtx_ptsz stream] (stream: CUstream, out: *mut CUcontext) {
        put(out, as_pointer(with(stream, |queue| queue.context)?))
    }

    fn cuStreamGetCtx_v2 [cuStreamGetCtx_v2_ptsz stream] (stream: CUstream, out: *mut CUcontext, green: *mut *mut c_void) {
        put_if(green, std::ptr::null_mut());
        put(out, as_pointer(with(stream, |queue| queue.context)?))
    }

    fn cuStreamGetDevice [cuStreamGetDevice_ptsz stream] (stream: CUstream, out: *mut i32) {
        let gpu = with(stream, |queue| queue.gpu)?;
        let ordinal = driver()?.visible.iter().position(|&visible| visible == gpu);
        put(out, ordinal.unwrap_or(0) as i32)
    }

    fn cuStreamAttachMemAsync [cuStreamAttachMemAsync_ptsz stream] (stream: CUstream, _address: u64, _length: usize, _flags: u32) {
        submit(stream, Work::Marker)
    }

    fn cuCtxSynchronize() {
        let context = world()?.current()?;
        synchronize_context(context)
    }

    fn cuCtxSynchronize_v2(context: CUcontext) {
        let context = crate::context::or_current(&*world()?, context)?;
        synchronize_context(context)
    }
}
