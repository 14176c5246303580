//! Access to the queues of the process: appending work, waiting, fences.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use simgpu_device::now_ns;

use super::worker;
use crate::driver::driver;
use crate::ffi::CudaResult;
use crate::objects::{Fence, Op, Queue, Queues, Work};

/// Maximum number of queued operations; adding another one blocks.
const QUEUE_DEPTH: usize = 1024;

/// Locks the queues of the process.
pub fn lock_queues() -> CudaResult<MutexGuard<'static, Queues>> {
    Ok(driver()?.streams.queues.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits for a change of the queues.
pub fn wait(guard: MutexGuard<'static, Queues>) -> CudaResult<MutexGuard<'static, Queues>> {
    Ok(driver()?.streams.changed.wait(guard).unwrap_or_else(PoisonError::into_inner))
}

/// Appends an operation to a stream and returns its sequence number. Blocks while the queue is full.
pub fn push(key: usize, work: Work) -> CudaResult<u64> {
    let driver = driver()?;
    let mut queues = lock_queues()?;
    while queues.streams.get(&key).is_some_and(|queue| queue.ops.len() >= QUEUE_DEPTH) {
        queues = wait(queues)?;
    }
    queues.sequence += 1;
    let sequence = queues.sequence;
    let queue = queues.streams.get_mut(&key).ok_or(crate::ffi::INVALID_HANDLE)?;
    let gpu = queue.gpu;
    let was_empty = queue.ops.is_empty();
    queue.ops.push_back(Op { sequence, queued_ns: now_ns(), work });
    if !queues.workers.contains(&gpu) {
        queues.workers.push(gpu);
        worker::start(driver, gpu);
    }
    let may_overlap = was_empty && queues.streams.values().any(|queue| queue.gpu == gpu && queue.running);
    drop(queues);
    driver.streams.changed.notify_all();
    if may_overlap {
        driver.streams.arrived[gpu].store(true, Ordering::Release);
        driver.slot.interrupt(gpu);
    }
    Ok(sequence)
}

/// Waits until an operation of a stream and all operations before it are done.
pub fn wait_for(key: usize, sequence: u64) -> CudaResult {
    let mut queues = lock_queues()?;
    while queues.streams.get(&key).and_then(|queue| queue.ops.front()).is_some_and(|op| op.sequence <= sequence) {
        queues = wait(queues)?;
    }
    Ok(())
}

/// Returns the fence that passes when all operations now in the stream are done.
pub fn fence(key: usize) -> CudaResult<Fence> {
    Ok((key, lock_queues()?.sequence))
}

/// Returns whether all operations of the stream up to the fence are done.
pub fn has_passed((key, sequence): Fence) -> bool {
    lock_queues().is_ok_and(|queues| queues.streams.get(&key).and_then(|queue| queue.ops.front()).is_none_or(|op| op.sequence > sequence))
}

/// Waits until all operations now in the streams that `which` selects are done.
pub fn drain(which: impl Fn(&Queue) -> bool) -> CudaResult {
    let mut queues = lock_queues()?;
    let last = queues.sequence;
    let pending = |queues: &Queues| {
        queues.streams.values().filter(|queue| which(queue)).any(|queue| queue.ops.front().is_some_and(|op| op.sequence <= last))
    };
    while pending(&queues) {
        queues = wait(queues)?;
    }
    Ok(())
}
