//! Stream handles: resolution to queues.

use cudarc::driver::sys::CUstream;

use super::queues::lock_queues;
use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_HANDLE};
use crate::handles::{PER_THREAD, new_handle};
use crate::objects::{Queue, StreamKind};

/// Returns the id of the calling thread.
pub fn current_thread() -> u64 {
    // SAFETY: pthread_self takes no arguments and cannot fail.
    unsafe { libc::pthread_self() }
}

/// Returns the key of the queue of a stream. Creates the queue of a default stream on first use.
pub fn resolve(stream: CUstream) -> CudaResult<usize> {
    let driver = driver()?;
    if stream.addr() > PER_THREAD {
        return if lock_queues()?.streams.contains_key(&stream.addr()) { Ok(stream.addr()) } else { Err(INVALID_HANDLE) };
    }
    let (context, ordinal) = state()?.current_gpu()?;
    let gpu = driver.gpu_index(ordinal)?;
    let mut queues = lock_queues()?;
    if stream.addr() < PER_THREAD {
        if !queues.streams.contains_key(&context) {
            queues.ids += 1;
            let queue = Queue::new(gpu, context, StreamKind::Legacy, 0, queues.ids);
            queues.streams.insert(context, queue);
        }
        return Ok(context);
    }
    if let Some(&key) = queues.per_thread.get(&(context, current_thread())) {
        return Ok(key);
    }
    let key = new_handle();
    queues.ids += 1;
    let queue = Queue::new(gpu, context, StreamKind::Blocking, 0, queues.ids);
    queues.streams.insert(key, queue);
    queues.per_thread.insert((context, current_thread()), key);
    Ok(key)
}
