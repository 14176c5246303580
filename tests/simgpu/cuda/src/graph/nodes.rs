//! Adding nodes to graphs by hand.

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_st, CUDA_KERNEL_NODE_PARAMS_v2_st, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS_v2_st, CUcontext, CUevent, CUgraph, CUgraphNode,
};

use super::{Step, dependencies};
use crate::copy::{rows_3d, set_rows};
use crate::driver::world;
use crate::ffi::{Answer, INVALID_VALUE, NOT_SUPPORTED, get, put};
use crate::handles::as_pointer;
use crate::launch;
use crate::stream::work::{Call, Work};

/// Adds a step and returns its node's handle.
pub fn add(graph: CUgraph, after: Vec<usize>, step: Step) -> Answer<usize> {
    Ok(world()?.graphs.get_mut(graph).map_err(|_| INVALID_VALUE)?.add(step, after))
}

/// Adds an allocation and writes its address into what was asked.
pub fn add_allocation(graph: CUgraph, after: Vec<usize>, asked: &mut CUDA_MEM_ALLOC_NODE_PARAMS) -> Answer<usize> {
    let mut world = world()?;
    let ordinal = asked.poolProps.location.id;
    crate::driver::driver()?.physical(ordinal)?;
    if asked.bytesize == 0 {
        return Err(INVALID_VALUE);
    }
    let context = world.current()?;
    let bytes = asked.bytesize as u64;
    asked.dptr = world.graph_address(graph.addr(), ordinal, context, bytes)?;
    let step = Step::Allocate { bytes, ordinal, address: asked.dptr };
    Ok(world.graphs.get_mut(graph).map_err(|_| INVALID_VALUE)?.add(step, after))
}

fn add_work(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, work: Work) -> Answer {
    let node = add(graph, dependencies(nodes, count)?, Step::Work(work))?;
    put(out, as_pointer(node))
}

/// The first version's parameters are the second's without their last two fields.
fn kernel(parameters: *const c_void) -> Answer<Work> {
    let asked = get(parameters.cast::<CUDA_KERNEL_NODE_PARAMS_st>())?;
    let grid = [asked.gridDimX, asked.gridDimY, asked.gridDimZ];
    let block = [asked.blockDimX, asked.blockDimY, asked.blockDimZ];
    let mut function = asked.func.addr();
    if function == 0 {
        function = get(parameters.cast::<CUDA_KERNEL_NODE_PARAMS_v2_st>())?.kern.addr();
    }
    launch::work(function, grid, block, asked.kernelParams, asked.extra)
}

fn memset(asked: &CUDA_MEMSET_NODE_PARAMS_v2_st) -> Answer<Work> {
    set_rows(asked.dst, asked.value, asked.elementSize as usize, asked.width, asked.height, asked.pitch)
}

/// `cuGraphAddNode`: the type comes first, the parameters 16 bytes behind it.
fn add_any(out: *mut CUgraphNode, graph: CUgraph, after: Vec<usize>, parameters: *mut c_void) -> Answer {
    let kind = get(parameters.cast::<u32>())?;
    // SAFETY: the C caller promises a whole CUgraphNodeParams, whose union starts there.
    let body = unsafe { parameters.byte_add(16) };
    let step = match kind {
        0 => Step::Work(kernel(body)?),
        2 => Step::Work(memset(&get(body.cast())?)?),
        3 => {
            let asked = get(body.cast::<CUDA_HOST_NODE_PARAMS>())?;
            Step::Work(Work::Call(Call { function: asked.fn_, data: asked.userData.expose_provenance() }))
        }
        4 => return add_child_any(out, graph, after, body),
        5 => Step::Work(Work::Marker),
        10 => {
            let mut asked = get(body.cast::<CUDA_MEM_ALLOC_NODE_PARAMS>())?;
            let node = add_allocation(graph, after, &mut asked)?;
            put(body.cast(), asked)?;
            return put(out, as_pointer(node));
        }
        11 => Step::Free { address: get(body.cast::<u64>())? },
        _ => return Err(NOT_SUPPORTED),
    };
    put(out, as_pointer(add(graph, after, step)?))
}

/// A child graph: cloned, or with a one behind its handle moved, which alone is allowed if it has memory of its own.
fn add_child_any(out: *mut CUgraphNode, graph: CUgraph, after: Vec<usize>, body: *const c_void) -> Answer {
    let child = get(body.cast::<CUgraph>())?;
    // SAFETY: as in `add_any`.
    let moved = get(unsafe { body.byte_add(8) }.cast::<u32>())? == 1;
    add_child(out, graph, after, child, moved)
}

fn add_child(out: *mut CUgraphNode, graph: CUgraph, after: Vec<usize>, child: CUgraph, moved: bool) -> Answer {
    let mut world = world()?;
    let found = world.graphs.get(child).map_err(|_| INVALID_VALUE)?.clone();
    if found.has_memory() && !moved {
        return Err(NOT_SUPPORTED);
    }
    if moved {
        world.graphs.remove(child)?;
    }
    drop(world);
    put(out, as_pointer(add(graph, after, Step::Child(found))?))
}

api! {
    // A handle to look at it by; it is not the node's own.
    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: *mut CUgraph) {
        let mut world = world()?;
        let found = world.graphs.iter().flat_map(|(_, graph)| &graph.nodes).find(|other| other.handle == node.addr());
        let Some(Step::Child(child)) = found.map(|node| node.step.clone()) else { return Err(INVALID_VALUE) };
        put(out, as_pointer(world.graphs.add(child)))
    }

    fn cuGraphAddKernelNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, parameters: *const c_void) {
        add_work(out, graph, nodes, count, kernel(parameters)?)
    }

    fn cuGraphAddKernelNode_v2(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, parameters: *const c_void) {
        add_work(out, graph, nodes, count, kernel(parameters)?)
    }

    // Which function it is; how it is launched nobody here asks.
    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v2_st) {
        let world = world()?;
        let mut nodes = world.graphs.iter().flat_map(|(_, graph)| &graph.nodes);
        let Some(Step::Work(Work::Kernel { function, .. })) = nodes.find(|other| other.handle == node.addr()).map(|node| &node.step) else {
            return Err(INVALID_VALUE);
        };
        // SAFETY: all-zero is valid for this struct of numbers and null pointers.
        let mut parameters = unsafe { std::mem::zeroed::<CUDA_KERNEL_NODE_PARAMS_v2_st>() };
        parameters.func = as_pointer(*function);
        put(out, parameters)
    }

    fn cuGraphAddEmptyNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize) {
        add_work(out, graph, nodes, count, Work::Marker)
    }

    fn cuGraphAddHostNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize,
        parameters: *const CUDA_HOST_NODE_PARAMS) {
        let asked = get(parameters)?;
        let call = Call { function: asked.fn_, data: asked.userData.expose_provenance() };
        add_work(out, graph, nodes, count, Work::Call(call))
    }

    fn cuGraphAddMemsetNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize,
        parameters: *const cudarc::driver::sys::CUDA_MEMSET_NODE_PARAMS, _context: CUcontext) {
        let asked = get(parameters)?;
        let work = set_rows(asked.dst, asked.value, asked.elementSize as usize, asked.width, asked.height, asked.pitch)?;
        add_work(out, graph, nodes, count, work)
    }

    fn cuGraphAddMemcpyNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize,
        parameters: *const CUDA_MEMCPY3D, _context: CUcontext) {
        let work = rows_3d(&get(parameters)?)?;
        add_work(out, graph, nodes, count, work)
    }

    fn cuGraphAddEventRecordNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, event: CUevent) {
        add_work(out, graph, nodes, count, Work::Record { event: event.addr(), number: u64::MAX, ns: 0 })
    }

    fn cuGraphAddEventWaitNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, event: CUevent) {
        add_work(out, graph, nodes, count, Work::Wait { event: event.addr(), number: 0 })
    }

    fn cuGraphAddChildGraphNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, child: CUgraph) {
        add_child(out, graph, dependencies(nodes, count)?, child, false)
    }

    fn cuGraphAddNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, parameters: *mut c_void) {
        add_any(out, graph, dependencies(nodes, count)?, parameters)
    }

    fn cuGraphAddNode_v2(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, _edges: *const c_void, count: usize,
        parameters: *mut c_void) {
        add_any(out, graph, dependencies(nodes, count)?, parameters)
    }

    fn cuGraphAddDependencies_v2(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, _edges: *const c_void, count: usize) {
        let (from, to) = (dependencies(from, count)?, dependencies(to, count)?);
        let mut world = world()?;
        let graph = world.graphs.get_mut(graph).map_err(|_| INVALID_VALUE)?;
        for (before, behind) in from.into_iter().zip(to) {
            graph.nodes.iter_mut().find(|node| node.handle == behind).ok_or(INVALID_VALUE)?.after.push(before);
        }
        Ok(())
    }
}
