//! Allocations of the process.

use std::collections::BTreeMap;

use super::arena::Arena;
use super::array::Array;
use super::queues::Fence;
use super::vmm::Vmm;
use crate::handles::Handles;

/// All memory of the process.
#[derive(Default)]
pub struct Memory {
    pub arena: Arena,
    pub arrays: Handles<Array>,
    pub vmm: Vmm,
    /// Addresses freed in stream order, with the fence that must pass first.
    pub deferred: Vec<(u64, Fence)>,
    /// Allocations by address.
    allocations: BTreeMap<u64, Allocation>,
    ids: u64,
}

/// Address range that the program may use.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Requested size in bytes.
    pub size: u64,
    pub ordinal: i32,
    pub context: usize,
    pub kind: Kind,
    pub id: u64,
}

/// Kind of an allocation; it determines how the allocation is freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Part of a granule that it shares with other allocations of its context.
    Small,
    /// Whole granules, with their size in bytes.
    Granules(u64),
    /// Managed memory with `space` bytes of address space, of which `resident` bytes are on the GPU.
    Managed { space: u64, resident: u64, prefers_host: bool },
    /// Part of the stream-ordered pool with this handle.
    Pool(usize),
    /// Allocated by a graph in `space` bytes of address space.
    Graph { space: u64 },
    /// Mapping of the physical memory with this handle.
    Mapped(usize),
    /// Pinned host memory, allocated or registered.
    Host { flags: u32, registered: bool },
    /// Owned by a module or an array; only its owner can free it.
    Global(Box<Kind>),
    /// Imported from another process.
    Imported { space: u64 },
}

impl Memory {
    /// Adds an allocation.
    pub fn add(&mut self, address: u64, size: u64, ordinal: i32, context: usize, kind: Kind) {
        self.ids += 1;
        self.allocations.insert(address, Allocation { size, ordinal, context, kind, id: self.ids });
    }

    /// Returns the allocation that starts at an address.
    pub fn at(&self, address: u64) -> Option<&Allocation> {
        self.allocations.get(&address)
    }

    /// Returns the allocation that contains an address, and its start.
    pub fn containing(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address - start < allocation.size).then_some((start, allocation))
    }

    /// Returns the allocation that contains an address, mutably.
    pub fn containing_mut(&mut self, address: u64) -> Option<&mut Allocation> {
        let start = self.containing(address)?.0;
        self.allocations.get_mut(&start)
    }

    /// Returns whether an allocation was freed in stream order and the free is still pending.
    pub fn is_deferred(&self, address: u64) -> bool {
        self.deferred.iter().any(|&(deferred, _)| deferred == address)
    }

    /// Drops the pending stream-ordered frees of the allocations of a context.
    pub fn drop_deferred_of(&mut self, context: usize) {
        let allocations = &self.allocations;
        self.deferred.retain(|(address, _)| allocations.get(address).is_some_and(|found| found.context != context));
    }

    /// Changes the kind of an allocation.
    pub fn retype(&mut self, address: u64, change: impl FnOnce(Kind) -> Kind) {
        if let Some(found) = self.allocations.get_mut(&address) {
            found.kind = change(std::mem::replace(&mut found.kind, Kind::Small));
        }
    }

    /// Returns whether any allocation starts in the `size` bytes from an address.
    pub fn any_start_in(&self, address: u64, size: u64) -> bool {
        self.allocations.range(address..address.saturating_add(size)).next().is_some()
    }

    /// Removes an allocation and returns it.
    pub fn remove(&mut self, address: u64) -> Option<Allocation> {
        self.allocations.remove(&address)
    }

    /// Returns the addresses of the allocations of a context.
    pub fn of_context(&self, context: usize) -> Vec<u64> {
        let own = self.allocations.iter().filter(|(_, allocation)| allocation.context == context);
        own.map(|(&address, _)| address).collect()
    }
}
