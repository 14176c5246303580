//! Graphs, their nodes and instances.

use std::collections::HashSet;

use super::work::Work;
use crate::handles::new_handle;

/// Graph, with its nodes in the order in which they were added.
#[derive(Clone, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

/// Node of a graph.
#[derive(Clone)]
pub struct Node {
    pub handle: usize,
    pub op: NodeOp,
    pub depends_on: Vec<usize>,
}

/// Operation of a node.
#[derive(Clone)]
pub enum NodeOp {
    Work(Work),
    /// Allocates memory at an address that was fixed when the node was added.
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

/// Instantiated graph.
pub struct GraphExec {
    pub flags: u64,
    /// Handle of the graph that it was instantiated from.
    pub graph: usize,
    pub ops: Vec<NodeOp>,
    /// Ordinal of its GPU and the bytes of graph memory that it holds since its first upload or launch.
    pub held_memory: Option<(i32, u64)>,
}

/// Returns the type of a node as a `CUgraphNodeType`.
pub fn node_type(op: &NodeOp) -> u32 {
    match op {
        NodeOp::Work(Work::Kernel { .. }) => 0,
        NodeOp::Work(Work::Copy { .. }) => 1,
        NodeOp::Work(Work::Fill { .. }) => 2,
        NodeOp::Work(Work::HostCall(_)) => 3,
        NodeOp::Child(_) => 4,
        NodeOp::Work(Work::WaitEvent { .. }) => 6,
        NodeOp::Work(Work::RecordEvent { .. }) => 7,
        NodeOp::Allocate { .. } => 10,
        NodeOp::Free { .. } => 11,
        NodeOp::Work(_) => 5,
    }
}

impl Graph {
    /// Adds a node that depends on others. Returns its handle.
    pub fn add(&mut self, op: NodeOp, depends_on: Vec<usize>) -> usize {
        let handle = new_handle();
        self.nodes.push(Node { handle, op, depends_on });
        handle
    }

    /// Returns whether a node allocates or frees memory.
    pub fn has_memory(&self) -> bool {
        self.nodes.iter().any(|node| match &node.op {
            NodeOp::Allocate { .. } | NodeOp::Free { .. } => true,
            NodeOp::Child(child) => child.has_memory(),
            NodeOp::Work(_) => false,
        })
    }

    /// Returns the operations in topological order, with child graphs expanded.
    pub fn ops(&self) -> Vec<NodeOp> {
        let mut done = HashSet::new();
        let mut left = self.nodes.iter().collect::<Vec<_>>();
        let mut ops = Vec::new();
        while let Some(at) = left.iter().position(|node| node.depends_on.iter().all(|before| done.contains(before))) {
            let node = left.remove(at);
            done.insert(node.handle);
            match &node.op {
                NodeOp::Child(child) => ops.extend(child.ops()),
                op => ops.push(op.clone()),
            }
        }
        ops
    }
}

/// Figures of the graph memory of one GPU, in bytes.
#[derive(Clone, Copy, Default)]
pub struct GraphMemory {
    pub reserved: u64,
    pub used: u64,
    pub reserved_high: u64,
    pub used_high: u64,
}
