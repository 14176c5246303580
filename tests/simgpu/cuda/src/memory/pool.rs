//! Stream-ordered pools. They take memory in chunks, allocate from these, and release empty chunks when the host synchronizes.

use cudarc::driver::sys::{CUmemPoolProps, CUmemoryPool, CUresult, CUstream};
use simgpu_device::Visibility;

use crate::driver::{Driver, State, driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, OUT_OF_MEMORY, get, put};
use crate::handles::as_pointer;
use crate::objects::pool::{Pool, SPACE_BYTES, rounded};
use crate::objects::{Kind, NodeOp};
use crate::stream::capture;
use crate::stream::queues::{fence, has_passed};
use crate::stream::resolve::resolve;

impl State {
    fn create_pool(&mut self, driver: &Driver, ordinal: i32, max_bytes: u64) -> CudaResult<usize> {
        driver.gpu_index(ordinal)?;
        let base = self.memory.arena.take(SPACE_BYTES).ok_or(OUT_OF_MEMORY)?;
        Ok(self.pools.live.add(Pool::new(ordinal, base, max_bytes)))
    }

    fn default_pool(&mut self, driver: &Driver, ordinal: i32) -> CudaResult<usize> {
        if let Some(&pool) = self.pools.defaults.get(&ordinal) {
            return Ok(pool);
        }
        let pool = self.create_pool(driver, ordinal, 0)?;
        self.pools.defaults.insert(ordinal, pool);
        Ok(pool)
    }

    fn current_pool(&mut self, driver: &Driver, ordinal: i32) -> CudaResult<usize> {
        let current = self.pools.current.get(&ordinal).copied();
        current.map_or_else(|| self.default_pool(driver, ordinal), Ok)
    }

    fn allocate_from(&mut self, driver: &Driver, pool: usize, context: usize, size: u64) -> CudaResult<u64> {
        let found = self.pools.live.get_mut(as_pointer::<()>(pool)).map_err(|_| INVALID_VALUE)?;
        if size == 0 || found.is_destroyed {
            return Err(INVALID_VALUE);
        }
        let (address, missing) = found.find(rounded(size)).ok_or(OUT_OF_MEMORY)?;
        if found.max_bytes > 0 && found.reserved() + missing > found.max_bytes {
            return Err(OUT_OF_MEMORY);
        }
        driver.charge(found.ordinal, missing, Visibility::Visible)?;
        found.take(address, rounded(size));
        let ordinal = found.ordinal;
        self.memory.add(address, size, ordinal, context, Kind::Pool(pool));
        Ok(address)
    }

    /// Frees an allocation of a pool. The pool keeps its chunks.
    pub fn free_to_pool(&mut self, driver: &Driver, address: u64, is_stream_ordered: bool) -> CudaResult {
        let allocation = self.memory.at(address).ok_or(INVALID_VALUE)?;
        let (Kind::Pool(handle), size) = (allocation.kind.clone(), allocation.size) else { return Err(INVALID_VALUE) };
        self.memory.remove(address);
        let pool = self.pools.live.get_mut(as_pointer::<()>(handle))?;
        pool.release(address, rounded(size), is_stream_ordered);
        if pool.is_destroyed && pool.live_allocations == 0 {
            let gone = self.pools.live.remove(as_pointer::<()>(handle))?;
            driver.release(gone.ordinal, gone.reserved(), Visibility::Visible);
            self.memory.arena.release(gone.base, SPACE_BYTES);
        }
        Ok(())
    }

    /// Releases memory of pools beyond their release thresholds. Called when the host has synchronized.
    pub fn trim_pools(&mut self, driver: &Driver) -> CudaResult {
        for pool in self.pools.live.values_mut() {
            pool.fences.retain(|fence| !has_passed(*fence));
            if !pool.fences.is_empty() {
                continue;
            }
            let bytes = pool.trim(pool.release_threshold);
            driver.release(pool.ordinal, bytes, Visibility::Visible);
        }
        Ok(())
    }

    /// Completes stream-ordered frees whose fences have passed.
    pub fn free_deferred(&mut self, driver: &Driver) -> CudaResult {
        let (passed, left) = std::mem::take(&mut self.memory.deferred).into_iter().partition::<Vec<_>, _>(|&(_, fence)| has_passed(fence));
        self.memory.deferred = left;
        passed.into_iter().try_for_each(|(address, _)| self.free(driver, address))
    }
}

fn allocate(out: *mut u64, size: usize, pool: Option<usize>, stream: CUstream) -> CudaResult {
    let driver = driver()?;
    let key = resolve(stream)?;
    put(out, 0)?;
    if size == 0 {
        return Ok(());
    }
    if capture::is_capturing(key)? {
        let graph = capture::graph_of(key)?;
        let mut state = state()?;
        let (context, ordinal) = state.current_gpu()?;
        let address = state.graph_address(graph, ordinal, context, size as u64)?;
        drop(state);
        capture::add_op(key, NodeOp::Allocate { bytes: size as u64, ordinal, address })?;
        return put(out, address);
    }
    capture::reject_implicit_dependency(key)?;
    capture::reject_unsafe_call()?;
    let mut state = state()?;
    let (context, ordinal) = state.current_gpu()?;
    let pool = match pool {
        Some(pool) => pool,
        None => state.current_pool(driver, ordinal)?,
    };
    put(out, state.allocate_from(driver, pool, context, size as u64)?)
}

fn free(address: u64, stream: CUstream) -> CudaResult {
    let driver = driver()?;
    let key = resolve(stream)?;
    if address == 0 {
        return Ok(());
    }
    if capture::is_capturing(key)? {
        return capture::add_op(key, NodeOp::Free { address }).map(|_| ());
    }
    let mut state = state()?;
    match state.memory.at(address).map(|found| found.kind.clone()) {
        Some(Kind::Pool(pool)) => {
            state.free_to_pool(driver, address, true)?;
            if let Ok(pool) = state.pools.live.get_mut(as_pointer::<()>(pool)) {
                pool.fences.push(fence(key)?);
            }
            Ok(())
        }
        Some(Kind::Small | Kind::Granules(_)) if state.memory.is_deferred(address) => Err(INVALID_VALUE),
        Some(Kind::Small | Kind::Granules(_)) => {
            let fence = fence(key)?;
            state.memory.deferred.push((address, fence));
            Ok(())
        }
        Some(Kind::Managed { .. }) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        Some(_) => state.free(driver, address),
        None => Err(INVALID_VALUE),
    }
}

fn with_pool<T>(pool: CUmemoryPool, body: impl FnOnce(&mut Pool) -> CudaResult<T>) -> CudaResult<T> {
    body(state()?.pools.live.get_mut(pool).map_err(|_| INVALID_VALUE)?)
}

api! {
    fn cuMemAllocAsync [cuMemAllocAsync_ptsz stream] (out: *mut u64, size: usize, stream: CUstream) { allocate(out, size, None, stream) }
    fn cuMemAllocFromPoolAsync [cuMemAllocFromPoolAsync_ptsz stream] (out: *mut u64, size: usize, pool: CUmemoryPool, stream: CUstream) {
        allocate(out, size, Some(pool.addr()), stream)
    }
    fn cuMemFreeAsync [cuMemFreeAsync_ptsz stream] (address: u64, stream: CUstream) { free(address, stream) }

    fn cuMemPoolCreate(out: *mut CUmemoryPool, properties: *const CUmemPoolProps) {
        let driver = driver()?;
        let properties = get(properties)?;
        if out.is_null() || properties.allocType as u32 != 1 || properties.location.type_ as u32 != 1 {
            return Err(INVALID_VALUE);
        }
        driver.gpu_index(properties.location.id).map_err(|_| INVALID_VALUE)?;
        let pool = state()?.create_pool(driver, properties.location.id, properties.maxSize as u64)?;
        put(out, as_pointer(pool))
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        let driver = driver()?;
        let mut state = state()?;
        if state.pools.defaults.values().any(|&default| default == pool.addr()) {
            return Err(INVALID_VALUE);
        }
        state.pools.current.retain(|_, current| *current != pool.addr());
        let found = state.pools.live.get_mut(pool).map_err(|_| INVALID_VALUE)?;
        found.is_destroyed = true;
        if found.live_allocations == 0 {
            let gone = state.pools.live.remove(pool)?;
            driver.release(gone.ordinal, gone.reserved(), Visibility::Visible);
            state.memory.arena.release(gone.base, SPACE_BYTES);
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        let driver = driver()?;
        capture::reject_unsafe_call()?;
        let (ordinal, bytes) = with_pool(pool, |pool| Ok((pool.ordinal, pool.trim(keep as u64))))?;
        driver.release(ordinal, bytes, Visibility::Visible);
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut std::ffi::c_void) {
        with_pool(pool, |pool| {
            match attribute {
                1..=3 => pool.flags[attribute as usize] = get(value.cast())?,
                4 => pool.release_threshold = get(value.cast())?,
                6 if get(value.cast::<u64>())? == 0 => pool.reserved_high = pool.reserved(),
                8 if get(value.cast::<u64>())? == 0 => pool.used_high = pool.used,
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut std::ffi::c_void) {
        capture::reject_unsafe_call()?;
        with_pool(pool, |pool| match attribute {
            1..=3 => put(value.cast(), pool.flags[attribute as usize]),
            4 => put(value.cast(), pool.release_threshold),
            5 => put(value.cast(), pool.reserved()),
            6 => put(value.cast(), pool.reserved_high),
            7 => put(value.cast(), pool.used),
            8 => put(value.cast(), pool.used_high),
            _ => Err(INVALID_VALUE),
        })
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, _map: *const std::ffi::c_void, _count: usize) { with_pool(pool, |_| Ok(())) }
    fn cuMemPoolGetAccess(flags: *mut u32, pool: CUmemoryPool, _location: *mut std::ffi::c_void) {
        with_pool(pool, |_| Ok(()))?;
        put(flags, 3)
    }

    fn cuDeviceGetDefaultMemPool(out: *mut CUmemoryPool, device: i32) {
        let driver = driver()?;
        let pool = state()?.default_pool(driver, device)?;
        put(out, as_pointer(pool))
    }

    fn cuDeviceGetMemPool(out: *mut CUmemoryPool, device: i32) {
        let driver = driver()?;
        let pool = state()?.current_pool(driver, device)?;
        put(out, as_pointer(pool))
    }

    fn cuDeviceSetMemPool(device: i32, pool: CUmemoryPool) {
        driver()?.gpu_index(device)?;
        let mut state = state()?;
        let found = state.pools.live.get(pool).map_err(|_| INVALID_VALUE)?;
        if found.ordinal != device {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        state.pools.current.insert(device, pool.addr());
        Ok(())
    }
}
