//! The streams of the process: queues of work, with the order that CUDA promises between them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use simgpu_device::{MAX_GPUS, now_ns};

use super::work::Work;
use crate::driver::driver;
use crate::ffi::CudaResult;
use crate::graph::Capture;
use crate::handles::Handles;

/// How many operations a stream takes before who adds one has to wait.
const QUEUE_DEPTH: usize = 1024;

/// How a stream stands to its context's legacy stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// It is that stream.
    Legacy,
    /// Waits for it, and it for this one.
    Blocking,
    /// Has nothing to do with it.
    NonBlocking,
}

/// One stream.
pub struct Queue {
    /// The GPU's physical index.
    pub gpu: usize,
    pub context: usize,
    pub kind: StreamKind,
    pub priority: i32,
    pub id: u64,
    pub ops: VecDeque<Op>,
    /// The first operation is being worked on, or waits for its copy engine until `until`.
    pub running: bool,
    pub copy_end_ns: Option<u64>,
    /// When the last finished operation ended, ns.
    pub cursor_ns: u64,
    pub capture: Option<Capture>,
}

/// An operation in its stream.
pub struct Op {
    pub sequence: u64,
    pub queued_ns: u64,
    pub work: Work,
}

/// An event.
#[derive(Default)]
pub struct Event {
    pub context: usize,
    pub timing: bool,
    /// Number of the last recording asked for, and of the last one that happened.
    pub recorded: u64,
    pub completed: u64,
    /// The capture that last recorded it.
    pub captured: Option<u64>,
    /// When it last happened, ns.
    pub time_ns: u64,
}

/// All streams and events.
#[derive(Default)]
pub struct Queues {
    pub streams: HashMap<usize, Queue>,
    pub per_thread: HashMap<(usize, u64), usize>,
    pub events: Handles<Event>,
    pub sequence: u64,
    pub ids: u64,
    /// GPUs that have a worker.
    pub workers: Vec<usize>,
}

/// The queues, and the bell that rings at every change.
#[derive(Default)]
pub struct SharedQueues {
    pub queues: Mutex<Queues>,
    pub changed: Condvar,
    /// For each GPU: something was added that may start beside what runs.
    pub arrived: [AtomicBool; MAX_GPUS],
}

/// The process' queues.
pub fn queues() -> CudaResult<MutexGuard<'static, Queues>> {
    Ok(driver()?.streams.queues.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits for a change.
pub fn wait(guard: MutexGuard<'static, Queues>) -> CudaResult<MutexGuard<'static, Queues>> {
    Ok(driver()?.streams.changed.wait(guard).unwrap_or_else(PoisonError::into_inner))
}

/// Puts an operation into a stream. Waits while the stream is full. Returns its number.
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

/// Waits until an operation of a stream, and all before it, are done.
pub fn wait_for(key: usize, sequence: u64) -> CudaResult {
    let mut queues = queues()?;
    while queues.streams.get(&key).and_then(|queue| queue.ops.front()).is_some_and(|op| op.sequence <= sequence) {
        queues = wait(queues)?;
    }
    Ok(())
}

/// How far a stream must have come: its key, and the number of an operation.
pub type Fence = (usize, u64);

/// The point that a stream reaches when all that is in it now is done.
pub fn fence(key: usize) -> CudaResult<Fence> {
    Ok((key, queues()?.sequence))
}

/// Whether a stream has come so far.
pub fn has_passed((key, sequence): Fence) -> bool {
    queues().is_ok_and(|queues| queues.streams.get(&key).and_then(|queue| queue.ops.front()).is_none_or(|op| op.sequence > sequence))
}

/// Waits until nothing is left of the streams that `which` chooses.
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
    /// The stream of a GPU whose first operation may start now; of several the one that was asked for first.
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

    /// When work of a stream can have started at the earliest, by what went before it in other streams, ns.
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

/// Whether everything in a stream came after an operation.
fn is_after(op: &Op, other: &Queue) -> bool {
    other.ops.front().is_none_or(|first| first.sequence > op.sequence)
}
