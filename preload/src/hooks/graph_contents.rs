//! Contents of a graph: kernels, and memory nodes with their addresses.

use crate::compute::{collectives, pacing};
use crate::hooks::{libraries, local_memory};
use crate::loader::driver;
use crate::memory::granules::GRANULE;
use crate::os::list::List;
use vgpu_cuda_abi::cuda::{
    AllocNodeParams, Device, Handle, KernelNodeParams, LOCATION_DEVICE, NODE_CHILD_GRAPH, NODE_KERNEL, NODE_MEM_ALLOC, SUCCESS, Status,
};

/// Depth to which child graphs are read.
const DEEPEST: u32 = 64;
/// Number of memory nodes that are read, and of nodes of one graph.
const MOST: usize = 1 << 20;

/// Reason why a graph cannot be instantiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The graph is too deep or too large to be read to its end.
    Unreadable,
    /// A kernel's library does not fit.
    Refused(Status),
}

/// Addresses of a memory node's allocation, in whole granules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    /// Ordinal of the GPU.
    device: Device,
    /// First address.
    start: u64,
    /// Address behind the last granule.
    end: u64,
}

/// Contents of a graph and its child graphs.
pub struct Contents {
    /// Number of kernels.
    pub kernels: u64,
    /// Largest local memory that a thread of any kernel needs, in bytes.
    pub local: u64,
    /// Whether any kernel waits for other GPUs; determined only under a compute limit.
    pub collective: bool,
    /// Allocations of the memory nodes; sorted after [`Contents::read`].
    ranges: List<Range, MOST>,
}

impl Contents {
    /// Reads a graph. One that the driver does not know is read as empty; the driver's call reports the error.
    ///
    /// # Errors
    /// Returns why the graph cannot be instantiated.
    ///
    /// # Safety
    /// `graph` is a handle from the program.
    pub unsafe fn read(graph: Handle) -> Result<Self, Unfit> {
        let mut contents = Self { kernels: 0, local: 0, collective: false, ranges: List::new() };
        let mut count = 0;
        // SAFETY: the driver writes the number of nodes when it is given no array.
        if unsafe { driver::graph_nodes(graph, core::ptr::null_mut(), &raw mut count) } == SUCCESS {
            // SAFETY: as the caller promises.
            unsafe { contents.add(graph, 0) }?;
            contents.ranges.as_mut_slice().sort_unstable();
        }
        Ok(contents)
    }

    /// Returns an upper bound of the memory that the nodes take on a device, in bytes: the size of the address ranges that they cover.
    /// Allocations that are not live at the same time share addresses (CUDA programming guide, "Graph Memory Nodes").
    pub fn bytes_on(&self, device: Device) -> u64 {
        let (mut sum, mut covered) = (0, 0);
        for range in self.ranges.as_slice().iter().filter(|range| range.device == device) {
            sum += range.end.saturating_sub(range.start.max(covered));
            covered = covered.max(range.end);
        }
        sum
    }

    /// Reads the nodes of a graph.
    unsafe fn add(&mut self, graph: Handle, depth: u32) -> Result<(), Unfit> {
        let mut count = 0;
        // SAFETY: the driver writes the number of nodes when it is given no array.
        let is_known = unsafe { driver::graph_nodes(graph, core::ptr::null_mut(), &raw mut count) } == SUCCESS;
        if !is_known || depth > DEEPEST || count > MOST {
            return Err(Unfit::Unreadable);
        }
        if count == 0 {
            return Ok(());
        }
        let mut nodes = List::<Handle, MOST>::new();
        // SAFETY: the list has room for `MOST` handles, and the graph has no more nodes; each handle is a node of this graph.
        unsafe {
            let room = nodes.room().ok_or(Unfit::Unreadable)?;
            if driver::graph_nodes(graph, room, &raw mut count) != SUCCESS {
                return Err(Unfit::Unreadable);
            }
            nodes.set_count(count);
            nodes.as_slice().iter().try_for_each(|&node| self.add_node(node, depth))
        }
    }

    /// Reads one node.
    unsafe fn add_node(&mut self, node: Handle, depth: u32) -> Result<(), Unfit> {
        let mut kind = 0;
        // SAFETY: a node of the program's graph; the driver writes one integer or handle, or a whole structure.
        unsafe {
            if driver::node_type(node, &raw mut kind) != SUCCESS {
                return Err(Unfit::Unreadable);
            }
            match kind {
                NODE_KERNEL => self.add_kernel(node),
                NODE_MEM_ALLOC => self.add_allocation(node),
                NODE_CHILD_GRAPH => {
                    let mut child = core::ptr::null_mut();
                    if driver::node_child(node, &raw mut child) != SUCCESS {
                        return Err(Unfit::Unreadable);
                    }
                    self.add(child, depth + 1)
                }
                _ => Ok(()),
            }
        }
    }

    /// Reads a kernel node.
    unsafe fn add_kernel(&mut self, node: Handle) -> Result<(), Unfit> {
        self.kernels += 1;
        let mut parameters = core::mem::MaybeUninit::<[KernelNodeParams; 2]>::zeroed();
        // SAFETY: the driver writes one structure, which is valid for any bytes. Drivers before CUDA 12 lack the call.
        let function = unsafe {
            if driver::node_kernel(node, parameters.as_mut_ptr().cast()) != SUCCESS {
                return Ok(());
            }
            KernelNodeParams::function_of::<2>(parameters.as_ptr().cast())
        };
        let Some(function) = function else { return Ok(()) };
        // Instantiation loads the kernel's library.
        libraries::before_launch(function).map_err(Unfit::Refused)?;
        self.local = self.local.max(local_memory::size_of(function));
        self.collective = self.collective || (pacing::is_limited() && collectives::is_one(function));
        Ok(())
    }

    /// Reads a memory node.
    unsafe fn add_allocation(&mut self, node: Handle) -> Result<(), Unfit> {
        let mut parameters = core::mem::MaybeUninit::<[AllocNodeParams; 2]>::zeroed();
        // SAFETY: the driver writes one structure, which is valid for any bytes.
        let known = unsafe {
            if driver::node_allocation(node, parameters.as_mut_ptr().cast()) != SUCCESS {
                return Err(Unfit::Unreadable);
            }
            *parameters.as_ptr().cast::<AllocNodeParams>()
        };
        if known.pool.location.kind != LOCATION_DEVICE {
            return Ok(());
        }
        let end = known.address.saturating_add(known.bytes as u64).next_multiple_of(GRANULE);
        let range = Range { device: known.pool.location.id, start: known.address & !(GRANULE - 1), end };
        if self.ranges.push(range) { Ok(()) } else { Err(Unfit::Unreadable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_at_the_same_addresses_count_once() {
        let mut contents = Contents { kernels: 0, local: 0, collective: false, ranges: List::new() };
        let granules = |device, start: u64, count: u64| Range { device, start: start * GRANULE, end: (start + count) * GRANULE };
        for range in
            [granules(0, 10, 5), granules(0, 12, 1), granules(1, 10, 3), granules(0, 14, 4), granules(0, 30, 2), granules(0, 30, 2)]
        {
            assert!(contents.ranges.push(range));
        }
        contents.ranges.as_mut_slice().sort_unstable();
        assert_eq!([0, 1, 2].map(|device| contents.bytes_on(device) / GRANULE), [10, 3, 0]);
    }
}
