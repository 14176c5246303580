//! Graphs: built node by node or by stream capture, instantiated, launched.

mod memory;
mod nodes;

use std::ffi::c_void;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphNode, CUstream};

use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, NOT_SUPPORTED, put, put_optional};
use crate::handles::as_pointer;
use crate::objects::{Graph, GraphExec, Node, NodeOp, Work, node_type};
use crate::stream::resolve::resolve;
use crate::stream::submit::submit;

fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> CudaResult {
    let mut state = state()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let found = state.graphs.get(graph).map_err(|_| INVALID_VALUE)?;
    let ops = found.ops();
    // Memory of a graph has a fixed address, so only one instance of such a graph may exist at a time.
    if found.has_memory() && state.graph_execs.iter().any(|(_, exec)| exec.graph == graph.addr()) {
        return Err(NOT_SUPPORTED);
    }
    if ops.iter().any(|op| matches!(op, NodeOp::Work(Work::Kernel { .. }))) {
        let context = state.current()?;
        memory::charge_kernel_graph(&mut state, context)?;
    }
    let exec = GraphExec { flags, graph: graph.addr(), ops, held_memory: None };
    put(out, as_pointer(state.graph_execs.add(exec)))
}

fn launch(exec: CUgraphExec, stream: CUstream) -> CudaResult {
    resolve(stream)?;
    memory::make_resident(exec)?;
    let ops = state()?.graph_execs.get(exec).map_err(|_| INVALID_VALUE)?.ops.clone();
    for op in ops {
        if let NodeOp::Work(work) = op {
            submit(stream, work)?;
        }
    }
    Ok(())
}

api! {
    fn cuGraphCreate(out: *mut CUgraph, flags: u32) {
        driver()?;
        if out.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(out, as_pointer(state()?.graphs.add(Graph::default())))
    }

    fn cuGraphDestroy(graph: CUgraph) {
        state()?.graphs.remove(graph).map(|_| ()).map_err(|_| INVALID_VALUE)
    }

    fn cuGraphClone(out: *mut CUgraph, graph: CUgraph) {
        let mut state = state()?;
        let copy = state.graphs.get(graph).map_err(|_| INVALID_VALUE)?.clone();
        if copy.has_memory() {
            return Err(NOT_SUPPORTED);
        }
        put(out, as_pointer(state.graphs.add(copy)))
    }

    fn cuGraphInstantiate(out: *mut CUgraphExec, graph: CUgraph, _node: *mut CUgraphNode, _log: *mut i8, _room: usize) {
        instantiate(out, graph, 0)
    }
    fn cuGraphInstantiate_v2(out: *mut CUgraphExec, graph: CUgraph, _node: *mut CUgraphNode, _log: *mut i8, _room: usize) {
        instantiate(out, graph, 0)
    }
    fn cuGraphInstantiateWithFlags(out: *mut CUgraphExec, graph: CUgraph, flags: u64) { instantiate(out, graph, flags) }

    fn cuGraphInstantiateWithParams [cuGraphInstantiateWithParams_ptsz]
        (out: *mut CUgraphExec, graph: CUgraph, parameters: *mut cudarc::driver::sys::CUDA_GRAPH_INSTANTIATE_PARAMS) {
        instantiate(out, graph, crate::ffi::get(parameters)?.flags)
    }

    fn cuGraphExecGetFlags(exec: CUgraphExec, out: *mut u64) {
        put(out, state()?.graph_execs.get(exec).map_err(|_| INVALID_VALUE)?.flags)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) { memory::destroy_exec(exec) }

    fn cuGraphUpload [cuGraphUpload_ptsz stream] (exec: CUgraphExec, stream: CUstream) {
        resolve(stream)?;
        memory::make_resident(exec)
    }

    fn cuGraphLaunch [cuGraphLaunch_ptsz stream] (exec: CUgraphExec, stream: CUstream) { launch(exec, stream) }

    fn cuGraphGetNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) {
        let state = state()?;
        let nodes = &state.graphs.get(graph).map_err(|_| INVALID_VALUE)?.nodes;
        put_nodes(out, count, nodes.iter())
    }

    fn cuGraphGetRootNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) {
        let state = state()?;
        let nodes = &state.graphs.get(graph).map_err(|_| INVALID_VALUE)?.nodes;
        put_nodes(out, count, nodes.iter().filter(|node| node.depends_on.is_empty()))
    }

    fn cuGraphNodeGetType(node: CUgraphNode, out: *mut u32) {
        let state = state()?;
        let mut nodes = state.graphs.iter().flat_map(|(_, graph)| &graph.nodes);
        put(out, node_type(&nodes.find(|other| other.handle == node.addr()).ok_or(INVALID_VALUE)?.op))
    }

    fn cuGraphDestroyNode(node: CUgraphNode) {
        let mut state = state()?;
        for graph in state.graphs.values_mut() {
            graph.nodes.retain(|other| other.handle != node.addr());
            graph.nodes.iter_mut().for_each(|other| other.depends_on.retain(|&before| before != node.addr()));
        }
        Ok(())
    }

    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, result: *mut c_void) {
        let mut state = state()?;
        let ops = state.graphs.get(graph).map_err(|_| INVALID_VALUE)?.ops();
        state.graph_execs.get_mut(exec).map_err(|_| INVALID_VALUE)?.ops = ops;
        put_optional(result.cast::<u32>(), 0);
        Ok(())
    }
}

fn put_nodes<'a>(out: *mut CUgraphNode, count: *mut usize, nodes: impl Iterator<Item = &'a Node>) -> CudaResult {
    let nodes = nodes.map(|node| as_pointer(node.handle)).collect::<Vec<CUgraphNode>>();
    if out.is_null() {
        return put(count, nodes.len());
    }
    let room = crate::ffi::get(count)?;
    for (index, node) in nodes.iter().take(room).enumerate() {
        // SAFETY: by CUDA's contract `out` has `room` elements.
        unsafe { out.add(index).write(*node) };
    }
    put(count, nodes.len().min(room))
}
