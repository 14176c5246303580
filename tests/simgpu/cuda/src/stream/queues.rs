//! Streams of the process as queues of work, with the ordering that CUDA guarantees between them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use simgpu_device::{MAX_GPUS, now_ns};

use super::work::Work;
use crate::driver::driver;
use crate::ffi::CudaResult;
use crate::graph::Capture;
use crate::handles::Handles;

/// Maximum number of queued operations; adding another one blocks.
const QUEUE_DEPTH: usize = 1024;

/// Relation of a stream to the legacy stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The legacy stream itself.
    Legacy,
    /// Synchronizes with the legacy stream.
    Blocking,
    /// Does not synchronize with the legacy stream.
    NonBlocking,
}

/// Queue of one stream.
pub struct Queue {
    /// Physical index of its GPU.
    pub gpu: usize,
    pub context: usize,
    pub kind: StreamKind,
    pub priority: i32,
    pub id: u64,
    pub ops: VecDeque<Op>,
    /// True while the first operation runs.
    pub running: bool,
    /// End of the running copy, ns, if the first operation uses a copy engine.
    pub copy_end_ns: Option<u64>,
    /// End of the last finished operation, ns.
    pub cursor_ns: u64,
    pub capture: Option<Capture>,
}

/// Queued operation.
pub struct Op {
    pub sequence: u64,
    pub queued_ns: u64,
    pub work: Work,
}

/// Event.
#[derive(Default)]
pub struct Event {
    pub context: usize,
    pub timing: bool,
    /// Number of the last recording that was requested.
    pub recorded: u64,
    /// Number of the last recording that completed.
    pub completed: u64,
    /// Id of the capture that last recorded it.
    pub captured: Option<u64>,
    /// Time of its last completion, ns.
    pub time_ns: u64,
}

/// All streams and events.
#[derive(Default)]
pub struct Queues {
    pub streams: HashMap<usize, Queue>,
    /// Keys of the per-thread default streams, by context and thread.
    pub per_thread: HashMap<(usize, u64), usize>,
    pub events: Handles<Event>,
    pub sequence: u64,
    pub ids: u64,
    /// GPUs that have a worker thread.
    pub workers: Vec<usize>,
}

/// Queues, with the condition variable that is notified of every change.
#[derive(Default)]
pub struct SharedQueues {
    pub queues: Mutex<Queues>,
    pub changed: Condvar,
    /// By GPU: work arrived that may overlap the running work.
    pub arrived: [AtomicBool; MAX_GPUS],
}

/// Locks the queues of the process.
pub fn queues() -> CudaResult<MutexGuard<'static, Queues>> {
    Ok(driver()?.streams.queues.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits for a change of the queues.
pub fn wait(guard: MutexGuard<'static, Queues>) -> CudaResult<MutexGuard<'static, Queues>> {
    Ok(driver()?.streams.changed.wait(guard).unwrap_or_else(PoisonError::into_inner))
}

/// Appends an operation to a stream and returns its sequence number. Blocks while the queue is full.
pub fn push(key: usize, work: Work) -> CudaResult<u64> {
    let driver = driver()?;
    let mut queues = queues()?;
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
        super::worker::start(driver, gpu);
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
    let mut queues = queues()?;
    while queues.streams.get(&key).and_then(|queue| queue.ops.front()).is_some_and(|op| op.sequence <= sequence) {
        queues = wait(queues)?;
    }
    Ok(())
}

/// Point in a stream: its key and the sequence number of an operation.
pub type Fence = (usize, u64);

/// Returns the fence that passes when all operations now in the stream are done.
pub fn fence(key: usize) -> CudaResult<Fence> {
    Ok((key, queues()?.sequence))
}

/// Returns whether all operations of the stream up to the fence are done.
pub fn has_passed((key, sequence): Fence) -> bool {
    queues().is_ok_and(|queues| queues.streams.get(&key).and_then(|queue| queue.ops.front()).is_none_or(|op| op.sequence > sequence))
}

/// Waits until all operations now in the streams that `which` selects are done.
pub fn drain(which: impl Fn(&Queue) -> bool) -> CudaResult {
    let mut queues = queues()?;
    let last = queues.sequence;
    let pending = |queues: &Queues| {
        queues.streams.values().filter(|queue| which(queue)).any(|queue| queue.ops.front().is_some_and(|op| op.sequence <= last))
    };
    while pending(&queues) {
        queues = wait(queues)?;
    }
    Ok(())
}

impl Queues {
    /// Returns the stream of a GPU whose first operation may start now; the earliest submitted operation first.
    pub fn ready(&self, gpu: usize) -> Option<usize> {
        let candidates = self.streams.iter().filter(|(_, queue)| queue.gpu == gpu && !queue.running);
        let ready = candidates.filter_map(|(&key, queue)| {
            let op = queue.ops.front()?;
            (self.may_start(key, queue, op)).then_some((op.sequence, key))
        });
        ready.min().map(|(_, key)| key)
    }

    fn may_start(&self, key: usize, queue: &Queue, op: &Op) -> bool {
        let ordered = match queue.kind {
            StreamKind::NonBlocking => true,
            StreamKind::Blocking => self.streams.get(&queue.context).is_none_or(|legacy| is_after(op, legacy)),
            StreamKind::Legacy => self.streams.iter().all(|(&other_key, other)| {
                other_key == key || other.context != queue.context || other.kind != StreamKind::Blocking || is_after(op, other)
            }),
        };
        ordered && self.event_completed(&op.work) && op.work.wait_is_satisfied()
    }

    fn event_completed(&self, work: &Work) -> bool {
        let &Work::WaitEvent { event, number } = work else { return true };
        self.events.find(event).is_none_or(|event| event.completed >= number)
    }

    /// Returns the earliest start of the next operation of a stream by the operations that precede it, ns.
    pub fn earliest_start_ns(&self, key: usize) -> u64 {
        let Some(queue) = self.streams.get(&key) else { return 0 };
        let before = self.streams.values().filter(|other| {
            other.context == queue.context
                && matches!(
                    (queue.kind, other.kind),
                    (StreamKind::Legacy, StreamKind::Blocking) | (StreamKind::Blocking, StreamKind::Legacy)
                )
        });
        before.map(|other| other.cursor_ns).fold(queue.cursor_ns, u64::max)
    }
}

/// Returns whether all operations in `other` were submitted after `op`.
fn is_after(op: &Op, other: &Queue) -> bool {
    other.ops.front().is_none_or(|first| first.sequence > op.sequence)
}
