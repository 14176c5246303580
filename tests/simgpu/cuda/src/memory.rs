//! Device memory: allocations and their cost.

mod arena;
mod array;
mod free_ranges;
mod host;
mod ipc;
mod linear;
mod managed;
mod pointer;
mod pool;
mod small_heap;
mod vmm;

use std::collections::BTreeMap;

use cudarc::driver::sys::CUresult;
use simgpu_device::Visibility;

pub use arena::Arena;
pub use managed::{advise_managed, migrate_on_gpu_access, migrate_to_gpu};
pub use pool::Pools;
pub use small_heap::SmallHeap;

use crate::driver::{Driver, State};
use crate::ffi::{CudaResult, INVALID_VALUE};
use crate::handles::Handles;
use crate::stream::queues::Fence;

/// Unit of device memory: allocations of at least this size take whole granules, smaller ones share granules.
pub const GRANULE: u64 = 2 << 20;

/// Rounds `size` up to whole granules. Returns bytes.
pub fn granules(size: u64) -> CudaResult<u64> {
    size.checked_next_multiple_of(GRANULE).ok_or(crate::ffi::OUT_OF_MEMORY)
}

/// All memory of the process.
#[derive(Default)]
pub struct Memory {
    pub arena: Arena,
    pub arrays: Handles<array::Array>,
    pub vmm: vmm::Vmm,
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

    fn of_context(&self, context: usize) -> Vec<u64> {
        let own = self.allocations.iter().filter(|(_, allocation)| allocation.context == context);
        own.map(|(&address, _)| address).collect()
    }
}

impl State {
    /// Allocates device memory in a context and charges it as the driver does.
    pub fn allocate(&mut self, driver: &Driver, context: usize, size: u64) -> CudaResult<u64> {
        let ordinal = self.context(context)?.ordinal;
        if size >= GRANULE {
            let bytes = granules(size)?;
            driver.charge(ordinal, bytes, Visibility::Visible)?;
            let Some(address) = self.memory.arena.take(bytes) else {
                driver.release(ordinal, bytes, Visibility::Visible);
                return Err(crate::ffi::OUT_OF_MEMORY);
            };
            self.memory.add(address, size, ordinal, context, Kind::Granules(bytes));
            return Ok(address);
        }
        let found = self.context_mut(context)?.small_heap.take(size);
        let address = match found {
            Some(address) => address,
            None => {
                driver.charge(ordinal, GRANULE, Visibility::Visible)?;
                let granule = self.memory.arena.take(GRANULE).ok_or(crate::ffi::OUT_OF_MEMORY)?;
                let small = &mut self.context_mut(context)?.small_heap;
                small.add(granule);
                small.take(size).ok_or(CUresult::CUDA_ERROR_UNKNOWN)?
            }
        };
        self.memory.add(address, size, ordinal, context, Kind::Small);
        Ok(address)
    }

    /// Frees an allocation as `cuMemFree` does.
    pub fn free(&mut self, driver: &Driver, address: u64) -> CudaResult {
        let allocation = self.memory.at(address).cloned().ok_or(INVALID_VALUE)?;
        match allocation.kind {
            Kind::Small => {
                let emptied = self.context_mut(allocation.context)?.small_heap.release(address, allocation.size);
                if let Some(granule) = emptied {
                    self.memory.arena.release(granule, GRANULE);
                    driver.release(allocation.ordinal, GRANULE, Visibility::Visible);
                }
            }
            Kind::Granules(bytes) => {
                self.memory.arena.release(address, bytes);
                driver.release(allocation.ordinal, bytes, Visibility::Visible);
            }
            Kind::Managed { space, resident, .. } => {
                self.memory.arena.release(address, space);
                driver.release(allocation.ordinal, resident, Visibility::Hidden);
            }
            Kind::Graph { space } => self.memory.arena.release(address, space),
            Kind::Pool(_) => {
                self.free_to_pool(driver, address, false)?;
                return self.trim_pools(driver);
            }
            // The real driver returns success and frees nothing.
            Kind::Global(_) => return Ok(()),
            Kind::Mapped(_) | Kind::Host { .. } | Kind::Imported { .. } => return Err(INVALID_VALUE),
        }
        self.memory.remove(address);
        Ok(())
    }

    /// Frees all memory of a context.
    pub fn free_context_memory(&mut self, driver: &Driver, context: usize) {
        self.destroy_arrays_of(context);
        let memory = &mut self.memory;
        memory.deferred.retain(|(address, _)| memory.allocations.get(address).is_some_and(|found| found.context != context));
        for address in self.memory.of_context(context) {
            // Allocations that cannot be freed here are freed by their owner.
            let _ = self.free(driver, address);
        }
    }
}
