//! Device memory: what is allocated where, and what it costs.

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

/// What the driver gives out: allocations of more than half of it take whole ones, smaller ones share.
pub const GRANULE: u64 = 2 << 20;

/// `size` in whole granules, in bytes.
pub fn granules(size: u64) -> CudaResult<u64> {
    size.checked_next_multiple_of(GRANULE).ok_or(crate::ffi::OUT_OF_MEMORY)
}

/// All memory of the process.
#[derive(Default)]
pub struct Memory {
    pub arena: Arena,
    pub arrays: Handles<array::Array>,
    pub vmm: vmm::Vmm,
    /// Freed in streams that had not come so far yet.
    pub deferred: Vec<(u64, Fence)>,
    /// By address.
    allocations: BTreeMap<u64, Allocation>,
    ids: u64,
}

/// A range of addresses that the program may use.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Bytes that the program asked for.
    pub size: u64,
    pub ordinal: i32,
    pub context: usize,
    pub kind: Kind,
    pub id: u64,
}

/// How a range was made, which says how it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In a granule shared with others of its context.
    Small,
    /// In granules of its own, so many bytes.
    Granules(u64),
    /// Managed, in so many bytes of address space, of which the GPU holds some. Whether it prefers the host, where the GPU reaches it.
    Managed { space: u64, resident: u64, prefers_host: bool },
    /// In a stream-ordered pool, with this handle.
    Pool(usize),
    /// Made by a graph in address space of so many bytes.
    Graph { space: u64 },
    /// Physical memory with this handle, mapped here.
    Mapped(usize),
    /// Of the host, made or only registered.
    Host { flags: u32, registered: bool },
    /// Of a module or an array, which alone can free it.
    Global(Box<Kind>),
    /// Of another process.
    Imported { space: u64 },
}

impl Memory {
    /// Enters a range.
    pub fn add(&mut self, address: u64, size: u64, ordinal: i32, context: usize, kind: Kind) {
        self.ids += 1;
        self.allocations.insert(address, Allocation { size, ordinal, context, kind, id: self.ids });
    }

    /// The range that starts at an address.
    pub fn at(&self, address: u64) -> Option<&Allocation> {
        self.allocations.get(&address)
    }

    /// The range around an address, and where it starts.
    pub fn containing(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address - start < allocation.size).then_some((start, allocation))
    }

    /// The range around an address, to change it.
    pub fn containing_mut(&mut self, address: u64) -> Option<&mut Allocation> {
        let start = self.containing(address)?.0;
        self.allocations.get_mut(&start)
    }

    /// Whether a range is freed as soon as its stream comes so far.
    pub fn is_deferred(&self, address: u64) -> bool {
        self.deferred.iter().any(|&(deferred, _)| deferred == address)
    }

    /// Changes what a range is.
    pub fn retype(&mut self, address: u64, change: impl FnOnce(Kind) -> Kind) {
        if let Some(found) = self.allocations.get_mut(&address) {
            found.kind = change(std::mem::replace(&mut found.kind, Kind::Small));
        }
    }

    /// Whether any range starts between an address and `size` bytes behind it.
    pub fn any_start_in(&self, address: u64, size: u64) -> bool {
        self.allocations.range(address..address.saturating_add(size)).next().is_some()
    }

    /// Takes a range out.
    pub fn remove(&mut self, address: u64) -> Option<Allocation> {
        self.allocations.remove(&address)
    }

    fn of_context(&self, context: usize) -> Vec<u64> {
        let own = self.allocations.iter().filter(|(_, allocation)| allocation.context == context);
        own.map(|(&address, _)| address).collect()
    }
}

impl State {
    /// Device memory for a context, charged as the driver takes it.
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

    /// Frees what `cuMemFree` may free.
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
            // The real one says that all is well, and frees nothing.
            Kind::Global(_) => return Ok(()),
            Kind::Mapped(_) | Kind::Host { .. } | Kind::Imported { .. } => return Err(INVALID_VALUE),
        }
        self.memory.remove(address);
        Ok(())
    }

    /// Frees everything that hangs on a context.
    pub fn free_context_memory(&mut self, driver: &Driver, context: usize) {
        self.destroy_arrays_of(context);
        let memory = &mut self.memory;
        memory.deferred.retain(|(address, _)| memory.allocations.get(address).is_some_and(|found| found.context != context));
        for address in self.memory.of_context(context) {
            // What cannot be freed here goes with its own owner.
            let _ = self.free(driver, address);
        }
    }
}
