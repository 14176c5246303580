//! Memory that graphs allocate, which is taken when a graph first runs.

use std::mem::zeroed;
use std::ptr::{null, null_mut};

use super::common::{Allocate, pool_properties, stream};
use crate::cuda::sys::{self, CUgraph, CUresult, CUstream};
use crate::cuda::{check, require, symbol};

fn empty() -> Result<CUgraph, CUresult> {
    let mut graph = null_mut();
    // SAFETY: the out-pointer is valid.
    check(unsafe { sys::cuGraphCreate(&raw mut graph, 0) })?;
    Ok(graph)
}

fn add(graph: CUgraph, ordinal: i32, bytes: usize) -> Result<(), CUresult> {
    let mut node = null_mut();
    // SAFETY: all-zero is valid for this struct of numbers and null pointers; the arguments live through the call.
    unsafe {
        let mut parameters = zeroed::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>();
        parameters.poolProps = pool_properties(ordinal);
        parameters.bytesize = bytes;
        check(sys::cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut parameters))
    }
}

fn run(graph: CUgraph, stream: CUstream, upload: bool) -> Result<(), CUresult> {
    let mut exec = null_mut();
    // SAFETY: the graph and the stream are valid, and so is the out-pointer.
    unsafe {
        check(sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
        check(if upload { sys::cuGraphUpload(exec, stream) } else { sys::cuGraphLaunch(exec, stream) })?;
        check(sys::cuStreamSynchronize(stream))
    }
}

pub fn alloc_node(ordinal: i32) -> Result<Allocate, CUresult> {
    let stream = stream()?;
    Ok(Box::new(move |bytes| {
        let graph = empty()?;
        add(graph, ordinal, bytes)?;
        run(graph, stream, false).map(|()| bytes as u64)
    }))
}

pub fn any_node(ordinal: i32) -> Result<Allocate, CUresult> {
    let stream = stream()?;
    Ok(Box::new(move |bytes| {
        require(c"cuGraphAddNode_v2")?;
        let (graph, mut node) = (empty()?, null_mut());
        // SAFETY: as above; the type names the union member that is set.
        unsafe {
            let mut parameters = zeroed::<sys::CUgraphNodeParams>();
            parameters.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC;
            let alloc = &mut parameters.__bindgen_anon_1.alloc;
            alloc.poolProps = pool_properties(ordinal);
            alloc.bytesize = bytes;
            check(sys::cuGraphAddNode_v2(&raw mut node, graph, null(), null(), 0, &raw mut parameters))?;
        }
        run(graph, stream, true).map(|()| bytes as u64)
    }))
}

/// Adds a stream to a capture and destroys it before the capture ends, as NCCL does.
fn join_capture(captured: CUstream) -> Result<(), CUresult> {
    let (other, mut event) = (stream()?, null_mut());
    // SAFETY: one stream and the event belong to this function, the other stream to the caller.
    unsafe {
        check(sys::cuEventCreate(&raw mut event, 2))?;
        for (from, to) in [(captured, other), (other, captured)] {
            check(sys::cuEventRecord(event, from))?;
            check(sys::cuStreamWaitEvent(to, event, 0))?;
        }
        check(sys::cuEventDestroy_v2(event))?;
        check(sys::cuStreamDestroy_v2(other))
    }
}

pub fn captured(_ordinal: i32) -> Result<Allocate, CUresult> {
    let (stream, mut address) = (stream()?, 0);
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // Creates a pool, which may be examined at every wait.
    // SAFETY: the out-pointer is valid; the address is freed once.
    unsafe {
        check(sys::cuMemAllocAsync(&raw mut address, 4096, stream))?;
        check(sys::cuMemFreeAsync(address, stream))?;
        check(sys::cuStreamSynchronize(stream))?;
    }
    Ok(Box::new(move |bytes| {
        let (mut graph, mut address) = (null_mut(), 0);
        // SAFETY: the stream belongs to this method; the out-pointers are valid.
        let code = unsafe {
            check(sys::cuStreamBeginCapture_v2(stream, mode))?;
            join_capture(stream)?;
            join_capture(stream)?;
            let code = sys::cuMemAllocAsync(&raw mut address, bytes, stream);
            check(sys::cuStreamEndCapture(stream, &raw mut graph))?;
            code
        };
        check(code)?;
        run(graph, stream, false).map(|()| bytes as u64)
    }))
}

/// Captures the thread's own default stream, by the function name that programs built for per-thread streams use.
pub fn captured_per_thread(_ordinal: i32) -> Result<Allocate, CUresult> {
    type Allocate = unsafe extern "C" fn(*mut u64, usize, CUstream) -> CUresult;
    // SAFETY: the function has this signature.
    let allocate: Allocate = unsafe { symbol(c"cuMemAllocAsync_ptsz") };
    let (stream, own) = (stream()?, std::ptr::without_provenance_mut(2));
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    Ok(Box::new(move |bytes| {
        let (mut graph, mut address, mut nodes) = (null_mut(), 0, 0);
        // SAFETY: the stream is the thread's own; the out-pointers are valid.
        let code = unsafe {
            check(sys::cuStreamBeginCapture_v2(own, mode))?;
            let code = allocate(&raw mut address, bytes, null_mut());
            check(sys::cuStreamEndCapture(own, &raw mut graph))?;
            check(code).and(check(sys::cuGraphGetNodes(graph, null_mut(), &raw mut nodes)))
        };
        code?;
        // The address must come from the graph.
        if nodes != 1 {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        run(graph, stream, false).map(|()| bytes as u64)
    }))
}

/// A graph that allocates becomes a child of another, as newer drivers allow.
pub fn child_graph(ordinal: i32) -> Result<Allocate, CUresult> {
    let stream = stream()?;
    Ok(Box::new(move |bytes| {
        require(c"cuGraphAddNode_v2")?;
        let (parent, graph, mut node) = (empty()?, empty()?, null_mut());
        add(graph, ordinal, bytes)?;
        // SAFETY: both graphs were just created; the type names the union member that is set.
        unsafe {
            let mut parameters = zeroed::<sys::CUgraphNodeParams>();
            parameters.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH;
            parameters.__bindgen_anon_1.graph.graph = graph;
            parameters.__bindgen_anon_1.graph.ownership = sys::CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
            check(sys::cuGraphAddNode_v2(&raw mut node, parent, null(), null(), 0, &raw mut parameters))?;
        }
        run(parent, stream, false).map(|()| bytes as u64)
    }))
}
