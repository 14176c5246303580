//! Memory of graphs. It is taken in chunks of 32 MiB when a graph is first uploaded or launched, and kept until trimmed.

use std::collections::HashMap;

use cudarc::driver::sys::{CUdeviceptr, CUgraph, CUgraphExec, CUgraphNode};
use simgpu_device::Visibility;

use super::nodes::{self, dependencies};
use crate::driver::{Driver, State, driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, OUT_OF_MEMORY, get, put};
use crate::handles::as_pointer;
use crate::objects::{GRANULE, GraphMemory, Kind, NodeOp, granules};
use crate::stream::queues::drain;

/// Bytes taken at a time.
const CHUNK_BYTES: u64 = 32 << 20;

impl State {
    /// Returns an address for an allocation node of a graph; the memory is taken later. Addresses freed in the same graph are reused.
    pub fn graph_address(&mut self, graph: usize, ordinal: i32, context: usize, bytes: u64) -> CudaResult<u64> {
        let space = granules(bytes)?;
        let mut free = HashMap::new();
        for node in &self.graphs.get(as_pointer::<()>(graph)).map_err(|_| INVALID_VALUE)?.nodes {
            match node.op {
                NodeOp::Allocate { bytes, address, .. } => _ = free.insert(address, (granules(bytes)?, false)),
                NodeOp::Free { address } => _ = free.entry(address).and_modify(|(_, is_free): &mut (u64, bool)| *is_free = true),
                _ => {}
            }
        }
        if let Some((&address, _)) = free.iter().find(|(_, (room, is_free))| *is_free && *room >= space) {
            return Ok(address);
        }
        let address = self.memory.arena.take(space).ok_or(OUT_OF_MEMORY)?;
        self.memory.add(address, bytes, ordinal, context, Kind::Graph { space });
        Ok(address)
    }

    fn graph_memory(&mut self, ordinal: i32) -> &mut GraphMemory {
        self.graph_memory.entry(ordinal).or_default()
    }

    fn trim_graph_memory(&mut self, driver: &Driver, ordinal: i32) {
        // Includes the memory of graphs that are not running: they take it again when launched. An allocation that its graph does not
        // free stays until it is freed elsewhere (CUDA programming guide, "Graph Memory Nodes").
        let (mut used, allocations) = (0, &self.memory);
        for exec in self.graph_execs.values_mut() {
            let Some((_, bytes)) = exec.held_memory.filter(|&(device, _)| device == ordinal) else { continue };
            let is_freed = |address| exec.ops.iter().any(|op| matches!(op, NodeOp::Free { address: freed } if *freed == address));
            let lives =
                |op: &NodeOp| matches!(op, &NodeOp::Allocate { address, .. } if !is_freed(address) && allocations.at(address).is_some());
            if exec.ops.iter().any(lives) {
                used += bytes;
            } else {
                exec.held_memory = None;
            }
        }
        let memory = self.graph_memory(ordinal);
        let spare = memory.reserved - used;
        (memory.used, memory.reserved) = (used, used);
        driver.release(ordinal, spare, Visibility::Visible);
    }
}

/// Takes the memory of an instantiated graph, if it does not hold it yet.
pub fn make_resident(exec: CUgraphExec) -> CudaResult {
    let driver = driver()?;
    let mut state = state()?;
    let exec_object = state.graph_execs.get(exec).map_err(|_| INVALID_VALUE)?;
    if exec_object.held_memory.is_some() {
        return Ok(());
    }
    // Several nodes with the same address share its memory.
    let (mut rooms, mut on) = (HashMap::new(), None);
    for op in &exec_object.ops {
        if let &NodeOp::Allocate { bytes, ordinal, address } = op {
            let room = rooms.entry(address).or_insert(0);
            *room = granules(bytes)?.max(*room);
            on = Some(ordinal);
        }
    }
    let Some(ordinal) = on else { return Ok(()) };
    let bytes = rooms.values().sum::<u64>().next_multiple_of(CHUNK_BYTES);
    let memory = *state.graph_memory(ordinal);
    let missing = (memory.used + bytes).saturating_sub(memory.reserved);
    driver.charge(ordinal, missing, Visibility::Visible)?;
    let memory = state.graph_memory(ordinal);
    memory.reserved += missing;
    memory.used += bytes;
    memory.reserved_high = memory.reserved_high.max(memory.reserved);
    memory.used_high = memory.used_high.max(memory.used);
    state.graph_execs.get_mut(exec)?.held_memory = Some((ordinal, bytes));
    Ok(())
}

/// Charges a granule for the first graph with kernels in a context.
pub fn charge_kernel_graph(state: &mut State, context: usize) -> CudaResult {
    let driver = driver()?;
    let context = state.context_mut(context)?;
    if context.graph_bytes == 0 {
        driver.charge(context.ordinal, GRANULE, Visibility::Visible)?;
        context.graph_bytes = GRANULE;
    }
    Ok(())
}

/// Destroys an instantiated graph. Its memory stays reserved until trimmed.
pub fn destroy_exec(exec: CUgraphExec) -> CudaResult {
    let mut state = state()?;
    let exec = state.graph_execs.remove(exec).map_err(|_| INVALID_VALUE)?;
    if let Some((ordinal, bytes)) = exec.held_memory {
        state.graph_memory(ordinal).used -= bytes;
    }
    Ok(())
}

api! {
    fn cuGraphAddMemAllocNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize,
        parameters: *mut cudarc::driver::sys::CUDA_MEM_ALLOC_NODE_PARAMS) {
        let mut params = get(parameters)?;
        let node = nodes::add_allocation(graph, dependencies(nodes, count)?, &mut params)?;
        put(parameters, params)?;
        put(out, as_pointer(node))
    }

    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, out: *mut cudarc::driver::sys::CUDA_MEM_ALLOC_NODE_PARAMS) {
        let state = state()?;
        let mut nodes = state.graphs.iter().flat_map(|(_, graph)| &graph.nodes);
        let node = nodes.find(|other| other.handle == node.addr()).ok_or(INVALID_VALUE)?;
        let NodeOp::Allocate { bytes, ordinal, address } = node.op else { return Err(INVALID_VALUE) };
        // SAFETY: all-zero is valid for this struct of integers and pointers.
        let mut parameters = unsafe { std::mem::zeroed::<cudarc::driver::sys::CUDA_MEM_ALLOC_NODE_PARAMS>() };
        parameters.poolProps.location.type_ = cudarc::driver::sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        parameters.poolProps.location.id = ordinal;
        parameters.bytesize = bytes as usize;
        parameters.dptr = address;
        put(out, parameters)
    }

    fn cuGraphAddMemFreeNode(out: *mut CUgraphNode, graph: CUgraph, nodes: *const CUgraphNode, count: usize, address: CUdeviceptr) {
        let node = nodes::add(graph, dependencies(nodes, count)?, NodeOp::Free { address })?;
        put(out, as_pointer(node))
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        let driver = driver()?;
        let gpu = driver.gpu_index(device)?;
        drain(|queue| queue.gpu == gpu)?;
        state()?.trim_graph_memory(driver, device);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: *mut u64) {
        driver()?.gpu_index(device)?;
        let mut state = state()?;
        let memory = *state.graph_memory(device);
        let values = [memory.used, memory.used_high, memory.reserved, memory.reserved_high];
        put(value, *values.get(attribute as usize).ok_or(INVALID_VALUE)?)
    }

    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: *mut u64) {
        driver()?.gpu_index(device)?;
        let mut state = state()?;
        let memory = state.graph_memory(device);
        match (attribute, get(value)?) {
            (1, 0) => memory.used_high = memory.used,
            (3, 0) => memory.reserved_high = memory.reserved,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}
