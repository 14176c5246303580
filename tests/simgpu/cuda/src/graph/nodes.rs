//! Functions that add nodes to graphs.

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_st, CUDA_KERNEL_NODE_PARAMS_v2_st, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS_v2_st, CUcontext, CUevent, CUgraph, CUgraphNode,
};

use crate::copy::{copy_work_3d, fill_rows};
use crate::driver::state;
use crate::ffi::{CudaResult, INVALID_VALUE, NOT_SUPPORTED, get, put, read_slice};
use crate::handles::as_pointer;
use crate::launch;
use crate::objects::{HostCall, NodeOp, Work};

/// Reads a list of dependencies.
pub fn dependencies(nodes: *const CUgraphNode, count: usize) -> CudaResult<Vec<usize>> {
    Ok(read_slice(nodes, count)?.iter().map(|node| node.addr()).collect())
}

/// Adds a node and returns its handle.
pub fn add(graph: CUgraph, after: Vec<usize>, op: NodeOp) -> CudaResult<usize> {
    Ok(state()?.graphs.get_mut(graph).map_err(|_| INVALID_VALUE)?.add(op, after))
}

/// Adds an allocation node and writes its address into the parameters.
pub fn add_allocation(graph: CUgraph, after: Vec<usize>, params: &mut CUDA_MEM_ALLOC_NODE_PARAMS) -> CudaResult<usize> {
    let mut state = state()?;
    let ordinal = params.poolProps.location.id;
    crate::driver::driver()?.gpu_index(ordinal)?;
    if params.bytesize == 0 {
        return Err(INVALID_VALUE);
    }
    let context = state.current()?;
    let bytes = params.bytesize as u64;
    params.dptr = state.graph_address(graph.addr(), ordinal, context, bytes)?;
    let op = NodeOp::Allocate { bytes, ordinal, address: params.dptr };
    Ok(state.graphs.get_mut(graph).map_err(|_| INVALID_VALUE)?.add(op, after))
}

fn add_work(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, work: Work) -> CudaResult {
    let node = add(graph, dependencies(nodes, count)?, NodeOp::Work(work))?;
    put(out, as_pointer(node))
}

/// Makes the work of a kernel node. The parameters of version 1 are those of version 2 without the last two fields.
fn kernel_work(parameters: *const c_void) -> CudaResult<Work> {
    let params = get(parameters.cast::<CUDA_KERNEL_NODE_PARAMS_st>())?;
    let grid = [params.gridDimX, params.gridDimY, params.gridDimZ];
    let block = [params.blockDimX, params.blockDimY, params.blockDimZ];
    let mut function = params.func.addr();
    if function == 0 {
        function = get(parameters.cast::<CUDA_KERNEL_NODE_PARAMS_v2_st>())?.kern.addr();
    }
    launch::kernel_work(function, grid, block, params.kernelParams, params.extra)
}

fn memset_work(params: &CUDA_MEMSET_NODE_PARAMS_v2_st) -> CudaResult<Work> {
    fill_rows(params.dst, params.value, params.elementSize as usize, params.width, params.height, params.pitch)
}

/// Implements `cuGraphAddNode`: the type is the first field, the union of parameters starts at offset 16.
fn add_node_of_type(out: *mut CUgraphNode, graph: CUgraph, after: Vec<usize>, parameters: *mut c_void) -> CudaResult {
    let kind = get(parameters.cast::<u32>())?;
    // SAFETY: by CUDA's contract a whole CUgraphNodeParams, whose union starts there.
    let body = unsafe { parameters.byte_add(16) };
    let op = match kind {
        0 => NodeOp::Work(kernel_work(body)?),
        2 => NodeOp::Work(memset_work(&get(body.cast())?)?),
        3 => {
            let params = get(body.cast::<CUDA_HOST_NODE_PARAMS>())?;
            NodeOp::Work(Work::HostCall(HostCall { function: params.fn_, data: params.userData.expose_provenance() }))
        }
        4 => return add_child_params(out, graph, after, body),
        5 => NodeOp::Work(Work::Marker),
        10 => {
            let mut params = get(body.cast::<CUDA_MEM_ALLOC_NODE_PARAMS>())?;
            let node = add_allocation(graph, after, &mut params)?;
            put(body.cast(), params)?;
            return put(out, as_pointer(node));
        }
        11 => NodeOp::Free { address: get(body.cast::<u64>())? },
        _ => return Err(NOT_SUPPORTED),
    };
    put(out, as_pointer(add(graph, after, op)?))
}

/// Adds a child graph, cloned or, with ownership 1, moved. Only a moved child may have memory nodes.
fn add_child_params(out: *mut CUgraphNode, graph: CUgraph, after: Vec<usize>, body: *const c_void) -> CudaResult {
    let child = get(body.cast::<CUgraph>())?;
    // SAFETY: as in `add_any`.
    let is_moved = get(unsafe { body.byte_add(8) }.cast::<u32>())? == 1;
    add_child(out, graph, after, child, is_moved)
}

fn add_child(out: *mut CUgraphNode, graph: CUgraph, after: Vec<usize>, child: CUgraph, is_moved: bool) -> CudaResult {
    let mut state = state()?;
    let found = state.graphs.get(child).map_err(|_| INVALID_VALUE)?.clone();
    if found.has_memory() && !is_moved {
        return Err(NOT_SUPPORTED);
    }
    if is_moved {
        state.graphs.remove(child)?;
    }
    drop(state);
    put(out, as_pointer(add(graph, after, NodeOp::Child(found))?))
}

api! {
    // Returns a handle of a copy, not of the node's own graph.
    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: *mut CUgraph) {
        let mut state = state()?;
        let found = state.graphs.iter().flat_map(|(_, graph)| &graph.nodes).find(|other| other.handle == node.addr());
        let Some(NodeOp::Child(child)) = found.map(|node| node.op.clone()) else { return Err(INVALID_VALUE) };
        put(out, as_pointer(state.graphs.add(child)))
    }

    fn cuGraphAddKernelNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, parameters: *const c_void) {
        add_work(out, graph, nodes, count, kernel_work(parameters)?)
    }

    fn cuGraphAddKernelNode_v2(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, parameters: *const c_void) {
        add_work(out, graph, nodes, count, kernel_work(parameters)?)
    }

    // Reports the function only; no test reads the launch parameters.
    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v2_st) {
        let state = state()?;
        let mut nodes = state.graphs.iter().flat_map(|(_, graph)| &graph.nodes);
        let Some(NodeOp::Work(Work::Kernel { function, .. })) = nodes.find(|other| other.handle == node.addr()).map(|node| &node.op) else {
            return Err(INVALID_VALUE);
        };
        // SAFETY: all-zero is valid for this struct of integers and pointers.
        let mut parameters = unsafe { std::mem::zeroed::<CUDA_KERNEL_NODE_PARAMS_v2_st>() };
        parameters.func = as_pointer(*function);
        put(out, parameters)
    }

    fn cuGraphAddEmptyNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize) {
        add_work(out, graph, nodes, count, Work::Marker)
    }

    fn cuGraphAddHostNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize,
        parameters: *const CUDA_HOST_NODE_PARAMS) {
        let params = get(parameters)?;
        let call = HostCall { function: params.fn_, data: params.userData.expose_provenance() };
        add_work(out, graph, nodes, count, Work::HostCall(call))
    }

    fn cuGraphAddMemsetNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize,
        parameters: *const cudarc::driver::sys::CUDA_MEMSET_NODE_PARAMS, _context: CUcontext) {
        let params = get(parameters)?;
        let work = fill_rows(params.dst, params.value, params.elementSize as usize, params.width, params.height, params.pitch)?;
        add_work(out, graph, nodes, count, work)
    }

    fn cuGraphAddMemcpyNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize,
        parameters: *const CUDA_MEMCPY3D, _context: CUcontext) {
        let work = copy_work_3d(&get(parameters)?)?;
        add_work(out, graph, nodes, count, work)
    }

    fn cuGraphAddEventRecordNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, event: CUevent) {
        add_work(out, graph, nodes, count, Work::RecordEvent { event: event.addr(), number: u64::MAX, ns: 0 })
    }

    fn cuGraphAddEventWaitNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, event: CUevent) {
        add_work(out, graph, nodes, count, Work::WaitEvent { event: event.addr(), number: 0 })
    }

    fn cuGraphAddChildGraphNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, child: CUgraph) {
        add_child(out, graph, dependencies(nodes, count)?, child, false)
    }

    fn cuGraphAddNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, parameters: *mut c_void) {
        add_node_of_type(out, graph, dependencies(nodes, count)?, parameters)
    }

    fn cuGraphAddNode_v2(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, _edges: *const c_void, count: usize,
        parameters: *mut c_void) {
        add_node_of_type(out, graph, dependencies(nodes, count)?, parameters)
    }

    fn cuGraphAddNode_v3(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, _edges: *const c_void, count: usize,
        parameters: *mut c_void) {
        add_node_of_type(out, graph, dependencies(nodes, count)?, parameters)
    }

    fn cuGraphAddDependencies_v2(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, _edges: *const c_void, count: usize) {
        let (from, to) = (dependencies(from, count)?, dependencies(to, count)?);
        let mut state = state()?;
        let graph = state.graphs.get_mut(graph).map_err(|_| INVALID_VALUE)?;
        for (before, behind) in from.into_iter().zip(to) {
            graph.nodes.iter_mut().find(|node| node.handle == behind).ok_or(INVALID_VALUE)?.depends_on.push(before);
        }
        Ok(())
    }
}
