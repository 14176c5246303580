//! Device memory: allocating, charging and freeing.

mod array;
mod host;
mod ipc;
mod linear;
pub mod managed;
mod pointer;
mod pool;
mod vmm;

use cudarc::driver::sys::CUresult;
use simgpu_device::Visibility;

use crate::driver::{Driver, State};
use crate::ffi::{CudaResult, INVALID_VALUE};
use crate::objects::{GRANULE, Kind, granules};

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
        self.memory.drop_deferred_of(context);
        for address in self.memory.of_context(context) {
            // Allocations that cannot be freed here are freed by their owner.
            let _ = self.free(driver, address);
        }
    }
}
