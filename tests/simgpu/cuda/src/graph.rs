//! Graphs: made node by node or by capturing a stream, instantiated, launched.

pub mod capture;
mod memory;
mod nodes;

use std::collections::HashSet;
use std::ffi::c_void;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphNode, CUstream};

pub use capture::Capture;
pub use memory::GraphMemory;

use crate::driver::{driver, world};
use crate::ffi::{Answer, INVALID_VALUE, NOT_SUPPORTED, array, put, put_if};
use crate::handles::{as_pointer, new_handle};
use crate::stream::work::Work;
use crate::stream::{resolve, submit};

/// A graph.
#[derive(Clone, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

/// A node, in the order in which nodes were added.
#[derive(Clone)]
pub struct Node {
    pub handle: usize,
    pub step: Step,
    pub after: Vec<usize>,
}

/// What a node does.
#[derive(Clone)]
pub enum Step {
    Work(Work),
    /// Makes memory, whose address was fixed when the node was made.
    Allocate {
        bytes: u64,
        ordinal: i32,
        address: u64,
    },
    Free {
        address: u64,
    },
    Child(Graph),
}

/// A graph that can be launched.
pub struct Exec {
    pub flags: u64,
    /// What it was made from.
    graph: usize,
    steps: Vec<Step>,
    /// Bytes of graph memory that it holds on each GPU's behalf since it was first launched.
    pub held: Option<(i32, u64)>,
}

/// Node types, as `cuGraphNodeGetType` numbers them.
fn type_of(step: &Step) -> u32 {
    match step {
        Step::Work(Work::Kernel { .. }) => 0,
        Step::Work(Work::Copy { .. }) => 1,
        Step::Work(Work::Fill { .. }) => 2,
        Step::Work(Work::Call(_)) => 3,
        Step::Child(_) => 4,
        Step::Work(Work::Wait { .. }) => 6,
        Step::Work(Work::Record { .. }) => 7,
        Step::Allocate { .. } => 10,
        Step::Free { .. } => 11,
        Step::Work(_) => 5,
    }
}

impl Graph {
    /// Adds a node behind others.
    pub fn add(&mut self, step: Step, after: Vec<usize>) -> usize {
        let handle = new_handle();
        self.nodes.push(Node { handle, step, after });
        handle
    }

    fn has_memory(&self) -> bool {
        self.nodes.iter().any(|node| match &node.step {
            Step::Allocate { .. } | Step::Free { .. } => true,
            Step::Child(child) => child.has_memory(),
            Step::Work(_) => false,
        })
    }

    /// The steps in an order that keeps every node behind those it names.
    fn steps(&self) -> Vec<Step> {
        let mut done = HashSet::new();
        let mut left = self.nodes.iter().collect::<Vec<_>>();
        let mut steps = Vec::new();
        while let Some(at) = left.iter().position(|node| node.after.iter().all(|before| done.contains(before))) {
            let node = left.remove(at);
            done.insert(node.handle);
            match &node.step {
                Step::Child(child) => steps.extend(child.steps()),
                step => steps.push(step.clone()),
            }
        }
        steps
    }
}

/// The dependencies that a C caller names.
pub fn dependencies(nodes: *const CUgraphNode, count: usize) -> Answer<Vec<usize>> {
    Ok(array(nodes, count)?.iter().map(|node| node.addr()).collect())
}

fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Answer {
    let mut world = world()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let found = world.graphs.get(graph).map_err(|_| INVALID_VALUE)?;
    let steps = found.steps();
    // Memory has one address, so there is one launchable graph with it at a time.
    if found.has_memory() && world.execs.iter().any(|(_, exec)| exec.graph == graph.addr()) {
        return Err(NOT_SUPPORTED);
    }
    if steps.iter().any(|step| matches!(step, Step::Work(Work::Kernel { .. }))) {
        let context = world.current()?;
        memory::pay_for_kernels(&mut world, context)?;
    }
    let exec = Exec { flags, graph: graph.addr(), steps, held: None };
    put(out, as_pointer(world.execs.add(exec)))
}

fn launch(exec: CUgraphExec, stream: CUstream) -> Answer {
    resolve(stream)?;
    memory::make_resident(exec)?;
    let steps = world()?.execs.get(exec).map_err(|_| INVALID_VALUE)?.steps.clone();
    for step in steps {
        if let Step::Work(work) = step {
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
        put(out, as_pointer(world()?.graphs.add(Graph::default())))
    }

    fn cuGraphDestroy(graph: CUgraph) {
        world()?.graphs.remove(graph).map(|_| ()).map_err(|_| INVALID_VALUE)
    }

    fn cuGraphClone(out: *mut CUgraph, graph: CUgraph) {
        let mut world = world()?;
        let copy = world.graphs.get(graph).map_err(|_| INVALID_VALUE)?.clone();
        if copy.has_memory() {
            return Err(NOT_SUPPORTED);
        }
        put(out, as_pointer(world.graphs.add(copy)))
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
        put(out, world()?.execs.get(exec).map_err(|_| INVALID_VALUE)?.flags)
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) { memory::end_of_exec(exec) }

    fn cuGraphUpload [cuGraphUpload_ptsz stream] (exec: CUgraphExec, stream: CUstream) {
        resolve(stream)?;
        memory::make_resident(exec)
    }

    fn cuGraphLaunch [cuGraphLaunch_ptsz stream] (exec: CUgraphExec, stream: CUstream) { launch(exec, stream) }

    fn cuGraphGetNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) {
        let world = world()?;
        let nodes = &world.graphs.get(graph).map_err(|_| INVALID_VALUE)?.nodes;
        give(out, count, nodes.iter())
    }

    fn cuGraphGetRootNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) {
        let world = world()?;
        let nodes = &world.graphs.get(graph).map_err(|_| INVALID_VALUE)?.nodes;
        give(out, count, nodes.iter().filter(|node| node.after.is_empty()))
    }

    fn cuGraphNodeGetType(node: CUgraphNode, out: *mut u32) {
        let world = world()?;
        let mut nodes = world.graphs.iter().flat_map(|(_, graph)| &graph.nodes);
        put(out, type_of(&nodes.find(|other| other.handle == node.addr()).ok_or(INVALID_VALUE)?.step))
    }

    fn cuGraphDestroyNode(node: CUgraphNode) {
        let mut world = world()?;
        for graph in world.graphs.values_mut() {
            graph.nodes.retain(|other| other.handle != node.addr());
            graph.nodes.iter_mut().for_each(|other| other.after.retain(|&before| before != node.addr()));
        }
        Ok(())
    }

    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, result: *mut c_void) {
        let mut world = world()?;
        let steps = world.graphs.get(graph).map_err(|_| INVALID_VALUE)?.steps();
        world.execs.get_mut(exec).map_err(|_| INVALID_VALUE)?.steps = steps;
        put_if(result.cast::<u32>(), 0);
        Ok(())
    }
}

fn give<'a>(out: *mut CUgraphNode, count: *mut usize, nodes: impl Iterator<Item = &'a Node>) -> Answer {
    let nodes = nodes.map(|node| as_pointer(node.handle)).collect::<Vec<CUgraphNode>>();
    if out.is_null() {
        return put(count, nodes.len());
    }
    let room = crate::ffi::get(count)?;
    for (index, node) in nodes.iter().take(room).enumerate() {
        // SAFETY: the C caller promises `room` elements.
        unsafe { out.add(index).write(*node) };
    }
    put(count, nodes.len().min(room))
}
