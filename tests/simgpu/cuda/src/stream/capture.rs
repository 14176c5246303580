//! Stream capture: work is added to a graph instead of being executed.

use std::cell::Cell;

use cudarc::driver::sys::{CUevent, CUgraph, CUresult, CUstream};

use super::queues::lock_queues;
use super::resolve::{current_thread, resolve};
use crate::driver::state;
use crate::ffi::{CudaResult, INVALID_VALUE, put, put_optional};
use crate::handles::as_pointer;
use crate::objects::{Capture, Graph, NodeOp, Queue, Queues, StreamKind, Work};

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

thread_local! {
    static THREAD_MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Adds the work to the graph of the stream if it is being captured. Returns whether it is.
pub fn record(key: usize, work: &Work) -> CudaResult<bool> {
    reject_implicit_dependency(key)?;
    match work {
        Work::WaitEvent { event, .. } => {
            let mut queues = lock_queues()?;
            let recorded = queues.events.find(*event).and_then(|event| event.captured);
            let joined = queues.streams.values().filter_map(|queue| queue.capture).find(|capture| Some(capture.id) == recorded);
            let Some(queue) = queues.streams.get_mut(&key) else { return Ok(false) };
            if queue.capture.is_none() {
                queue.capture = joined.map(|capture| Capture { is_origin: false, ..capture });
            }
            Ok(queue.capture.is_some())
        }
        Work::RecordEvent { event, .. } => {
            let mut queues = lock_queues()?;
            let Some(capture) = queues.streams.get(&key).and_then(|queue| queue.capture) else { return Ok(false) };
            if let Some(event) = queues.events.find_mut(*event) {
                event.captured = Some(capture.id);
            }
            Ok(true)
        }
        work => add_op(key, NodeOp::Work(work.clone())),
    }
}

/// Adds any node operation to the graph of the stream if it is being captured. Returns whether it is.
pub fn add_op(key: usize, op: NodeOp) -> CudaResult<bool> {
    let capture = lock_queues()?.streams.get(&key).and_then(|queue| queue.capture);
    let Some(capture) = capture else { return Ok(false) };
    if capture.invalidated {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let mut state = state()?;
    let graph = state.graphs.get_mut(as_pointer::<()>(capture.graph))?;
    let after = graph.nodes.last().map(|node| node.handle).into_iter().collect();
    graph.add(op, after);
    Ok(true)
}

/// Returns the graph that a stream is captured into.
pub fn graph_of(key: usize) -> CudaResult<usize> {
    lock_queues()?.streams.get(&key).and_then(|queue| queue.capture).map(|capture| capture.graph).ok_or(INVALID_VALUE)
}

/// Returns whether a stream is being captured.
pub fn is_capturing(key: usize) -> CudaResult<bool> {
    Ok(lock_queues()?.streams.get(&key).is_some_and(|queue| queue.capture.is_some()))
}

/// Fails and invalidates the capture if the stream is being captured.
pub fn reject_capturing_stream(key: usize) -> CudaResult {
    let mut queues = lock_queues()?;
    match queues.streams.get_mut(&key).and_then(|queue| queue.capture.as_mut()) {
        None => Ok(()),
        Some(capture) => {
            capture.invalidated = true;
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Fails and invalidates the capture if the event was last recorded in a capture.
pub fn reject_captured_event(queues: &mut Queues, event: CUevent) -> CudaResult {
    let Some(id) = queues.events.get(event)?.captured else { return Ok(()) };
    for capture in queues.streams.values_mut().filter_map(|queue| queue.capture.as_mut()).filter(|capture| capture.id == id) {
        capture.invalidated = true;
    }
    Err(CUresult::CUDA_ERROR_CAPTURED_EVENT)
}

/// Fails and invalidates the capture if a stream of the context is being captured.
pub fn reject_capturing_context(context: usize) -> CudaResult {
    let mut queues = lock_queues()?;
    let capturing = queues.streams.values_mut().filter(|queue| queue.context == context).find_map(|queue| queue.capture.as_mut());
    capturing.map_or(Ok(()), |capture| {
        capture.invalidated = true;
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    })
}

/// Fails and invalidates the capture if its mode forbids calls that might synchronize.
pub fn reject_unsafe_call() -> CudaResult {
    let mode = THREAD_MODE.get();
    if mode == RELAXED {
        return Ok(());
    }
    let mut queues = lock_queues()?;
    let captures = queues.streams.values_mut().filter_map(|queue| queue.capture.as_mut());
    let mut rejecting = captures.filter(|capture| match capture.mode {
        RELAXED => false,
        GLOBAL if mode == GLOBAL => true,
        _ => capture.thread == current_thread(),
    });
    match rejecting.next() {
        None => Ok(()),
        Some(capture) => {
            capture.invalidated = true;
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

fn begin(stream: CUstream, graph: Option<usize>, mode: u32) -> CudaResult {
    let key = resolve(stream)?;
    if mode > RELAXED {
        return Err(INVALID_VALUE);
    }
    let fresh = || Ok(state()?.graphs.add(Graph::default()));
    let graph = graph.map_or_else(fresh, Ok)?;
    let mut queues = lock_queues()?;
    queues.ids += 1;
    let id = queues.ids;
    let queue = queues.streams.get_mut(&key).ok_or(INVALID_VALUE)?;
    if queue.kind == StreamKind::Legacy {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if queue.capture.is_some() {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    queue.capture = Some(Capture { graph, id, mode, thread: current_thread(), is_origin: true, invalidated: false });
    Ok(())
}

fn end(stream: CUstream, out: *mut CUgraph) -> CudaResult {
    let key = resolve(stream)?;
    let mut queues = lock_queues()?;
    let capture = queues.streams.get(&key).and_then(|queue| queue.capture);
    let capture = capture.filter(|capture| capture.is_origin).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    for queue in queues.streams.values_mut() {
        queue.capture = queue.capture.filter(|other| other.id != capture.id);
    }
    drop(queues);
    if capture.invalidated {
        state()?.graphs.remove(as_pointer::<()>(capture.graph))?;
        put_optional(out, std::ptr::null_mut());
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    put(out, as_pointer(capture.graph))
}

/// Returns whether the stream is the legacy stream while a stream that synchronizes with it is being captured (CUDA's documentation).
fn has_implicit_dependency(queues: &Queues, key: usize) -> bool {
    let legacy = queues.streams.get(&key).filter(|queue| queue.kind == StreamKind::Legacy);
    let waits = |other: &&Queue| other.kind == StreamKind::Blocking && other.capture.is_some();
    legacy.is_some_and(|legacy| queues.streams.values().filter(waits).any(|other| other.context == legacy.context))
}

/// Fails if the work would make the legacy stream depend on a captured stream.
pub fn reject_implicit_dependency(key: usize) -> CudaResult {
    if has_implicit_dependency(&*lock_queues()?, key) { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
}

fn info(stream: CUstream, status: *mut u32, id: *mut u64, graph: *mut CUgraph) -> CudaResult {
    let key = resolve(stream)?;
    let queues = lock_queues()?;
    if has_implicit_dependency(&queues, key) {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    let capture = queues.streams.get(&key).and_then(|queue| queue.capture);
    put(status, capture.map_or(0, |capture| if capture.invalidated { 2 } else { 1 }))?;
    if let Some(capture) = capture {
        put_optional(id, capture.id);
        put_optional(graph, as_pointer(capture.graph));
    }
    Ok(())
}

type Nodes = *mut *const cudarc::driver::sys::CUgraphNode;

fn no_dependencies(nodes: Nodes, count: *mut usize) {
    put_optional(nodes, std::ptr::null());
    put_optional(count, 0);
}

api! {
    fn cuStreamBeginCapture [cuStreamBeginCapture_ptsz stream] (stream: CUstream) { begin(stream, None, GLOBAL) }
    fn cuStreamBeginCapture_v2 [cuStreamBeginCapture_v2_ptsz stream] (stream: CUstream, mode: u32) { begin(stream, None, mode) }

    fn cuStreamBeginCaptureToGraph [cuStreamBeginCaptureToGraph_ptsz stream] (stream: CUstream, graph: CUgraph,
        _nodes: *const cudarc::driver::sys::CUgraphNode, _edges: *const std::ffi::c_void, _count: usize, mode: u32) {
        begin(stream, Some(graph.addr()), mode)
    }

    fn cuStreamEndCapture [cuStreamEndCapture_ptsz stream] (stream: CUstream, out: *mut CUgraph) { end(stream, out) }

    fn cuStreamIsCapturing [cuStreamIsCapturing_ptsz stream] (stream: CUstream, out: *mut u32) {
        info(stream, out, std::ptr::null_mut(), std::ptr::null_mut())
    }

    fn cuStreamGetCaptureInfo [cuStreamGetCaptureInfo_ptsz stream] (stream: CUstream, status: *mut u32, id: *mut u64) {
        info(stream, status, id, std::ptr::null_mut())
    }

    fn cuStreamGetCaptureInfo_v2 [cuStreamGetCaptureInfo_v2_ptsz stream]
        (stream: CUstream, status: *mut u32, id: *mut u64, graph: *mut CUgraph, nodes: Nodes, count: *mut usize) {
        no_dependencies(nodes, count);
        info(stream, status, id, graph)
    }

    fn cuStreamGetCaptureInfo_v3 [cuStreamGetCaptureInfo_v3_ptsz stream]
        (stream: CUstream, status: *mut u32, id: *mut u64, graph: *mut CUgraph, nodes: Nodes, edges: *mut *const std::ffi::c_void,
         count: *mut usize) {
        no_dependencies(nodes, count);
        put_optional(edges, std::ptr::null());
        info(stream, status, id, graph)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) {
        let wanted = crate::ffi::get(mode)?;
        if wanted > RELAXED {
            return Err(INVALID_VALUE);
        }
        put(mode, THREAD_MODE.replace(wanted))
    }
}
