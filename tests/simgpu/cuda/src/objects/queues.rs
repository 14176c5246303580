//! Streams as queues of work, events, and the ordering that CUDA guarantees between streams.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

use simgpu_device::MAX_GPUS;

use super::work::Work;
use crate::handles::Handles;

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

impl Queue {
    /// Creates an idle queue.
    pub fn new(gpu: usize, context: usize, kind: StreamKind, priority: i32, id: u64) -> Queue {
        Queue {
            gpu,
            context,
            kind,
            priority,
            id,
            ops: std::collections::VecDeque::new(),
            running: false,
            copy_end_ns: None,
            cursor_ns: 0,
            capture: None,
        }
    }
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

/// Capture state of a stream.
#[derive(Clone, Copy)]
pub struct Capture {
    pub graph: usize,
    /// Id of the capture; streams that join it share the id.
    pub id: u64,
    pub mode: u32,
    pub thread: u64,
    /// True for the stream on which the capture began.
    pub is_origin: bool,
    pub invalidated: bool,
}

/// Point in a stream: its key and the sequence number of an operation.
pub type Fence = (usize, u64);

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
