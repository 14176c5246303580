//! Objects of the driver: plain data without access to the driver's state.

mod arena;
mod array;
mod context;
mod free_ranges;
mod granule;
mod graph;
mod memory;
mod module;
pub mod pool;
pub mod ptx;
mod queues;
mod small_heap;
mod vmm;
mod work;

pub use array::Array;
pub use context::{ChannelGroup, Context, Contexts, Limits, PrimaryContext};
pub use granule::{GRANULE, granules};
pub use graph::{Graph, GraphExec, GraphMemory, Node, NodeOp, node_type};
pub use memory::{Allocation, Kind, Memory};
pub use module::{Function, Library, Module};
pub use pool::Pools;
pub use ptx::Image;
pub use queues::{Capture, Event, Fence, Op, Queue, Queues, SharedQueues, StreamKind};
pub use small_heap::SmallHeap;
pub use vmm::{Descriptor, ExportedMemory, Physical};
pub use work::{HostCall, Row, Work};
