//! Stream-ordered pools: they take memory in steps, cut allocations of any size from them, and give steps back when the host waits.

mod chunks;

use std::collections::HashMap;

use cudarc::driver::sys::{CUmemPoolProps, CUmemoryPool, CUresult, CUstream};
use simgpu_device::Part;

use super::Kind;
use crate::driver::{Driver, World, driver, world};
use crate::ffi::{Answer, INVALID_VALUE, OUT_OF_MEMORY, get, put};
use crate::graph::{Step, capture};
use crate::handles::{Handles, as_pointer};
use crate::stream::queues::{fence, has_passed};
use crate::stream::resolve;
use chunks::{Pool, SPACE, rounded};

/// The pools of the process, and which one each GPU uses by default and now.
#[derive(Default)]
pub struct Pools {
    pub live: Handles<Pool>,
    defaults: HashMap<i32, usize>,
    current: HashMap<i32, usize>,
}

impl World {
    fn make_pool(&mut self, driver: &Driver, ordinal: i32, most: u64) -> Answer<usize> {
        driver.physical(ordinal)?;
        let base = self.memory.arena.take(SPACE).ok_or(OUT_OF_MEMORY)?;
        Ok(self.pools.live.add(Pool::new(ordinal, base, most)))
    }

    fn default_pool(&mut self, driver: &Driver, ordinal: i32) -> Answer<usize> {
        if let Some(&pool) = self.pools.defaults.get(&ordinal) {
            return Ok(pool);
        }
        let pool = self.make_pool(driver, ordinal, 0)?;
        self.pools.defaults.insert(ordinal, pool);
        Ok(pool)
    }

    fn current_pool(&mut self, driver: &Driver, ordinal: i32) -> Answer<usize> {
        let current = self.pools.current.get(&ordinal).copied();
        current.map_or_else(|| self.default_pool(driver, ordinal), Ok)
    }

    fn allocate_from(&mut self, driver: &Driver, pool: usize, context: usize, size: u64) -> Answer<u64> {
        let found = self.pools.live.get_mut(as_pointer::<()>(pool)).map_err(|_| INVALID_VALUE)?;
        if size == 0 || found.destroyed {
            return Err(INVALID_VALUE);
        }
        let (address, missing) = found.find(rounded(size)).ok_or(OUT_OF_MEMORY)?;
        if found.most > 0 && found.reserved() + missing > found.most {
            return Err(OUT_OF_MEMORY);
        }
        driver.charge(found.ordinal, missing, Part::Visible)?;
        found.take(address, rounded(size));
        let ordinal = found.ordinal;
        self.memory.add(address, size, ordinal, context, Kind::Pool(pool));
        Ok(address)
    }

    /// Frees an allocation of a pool; the pool keeps its steps for now.
    pub fn free_to_pool(&mut self, driver: &Driver, address: u64, by_stream: bool) -> Answer {
        let allocation = self.memory.at(address).ok_or(INVALID_VALUE)?;
        let (Kind::Pool(handle), size) = (allocation.kind.clone(), allocation.size) else { return Err(INVALID_VALUE) };
        self.memory.remove(address);
        let pool = self.pools.live.get_mut(as_pointer::<()>(handle))?;
        pool.give(address, rounded(size), by_stream);
        if pool.destroyed && pool.live == 0 {
            let gone = self.pools.live.remove(as_pointer::<()>(handle))?;
            driver.release(gone.ordinal, gone.reserved(), Part::Visible);
            self.memory.arena.give(gone.base, SPACE);
        }
        Ok(())
    }

    /// Gives back what pools hold beyond their thresholds: the host has waited.
    pub fn trim_pools(&mut self, driver: &Driver) -> Answer {
        for pool in self.pools.live.values_mut() {
            pool.fences.retain(|fence| !has_passed(*fence));
            if !pool.fences.is_empty() {
                continue;
            }
            let bytes = pool.trim(pool.threshold);
            driver.release(pool.ordinal, bytes, Part::Visible);
        }
        Ok(())
    }

    /// Frees what was freed in streams that have come so far since.
    pub fn free_deferred(&mut self, driver: &Driver) -> Answer {
        let (passed, left) = std::mem::take(&mut self.memory.deferred).into_iter().partition::<Vec<_>, _>(|&(_, fence)| has_passed(fence));
        self.memory.deferred = left;
        passed.into_iter().try_for_each(|(address, _)| self.free(driver, address))
    }
}

fn allocate(out: *mut u64, size: usize, pool: Option<usize>, stream: CUstream) -> Answer {
    let driver = driver()?;
    let key = resolve(stream)?;
    put(out, 0)?;
    if size == 0 {
        return Ok(());
    }
    if capture::is_capturing(key)? {
        let graph = capture::graph_of(key)?;
        let mut world = world()?;
        let (context, ordinal) = world.current_gpu()?;
        let address = world.graph_address(graph, ordinal, context, size as u64)?;
        drop(world);
        capture::add_step(key, Step::Allocate { bytes: size as u64, ordinal, address })?;
        return put(out, address);
    }
    capture::refuse_implicit(key)?;
    capture::forbid()?;
    let mut world = world()?;
    let (context, ordinal) = world.current_gpu()?;
    let pool = match pool {
        Some(pool) => pool,
        None => world.current_pool(driver, ordinal)?,
    };
    put(out, world.allocate_from(driver, pool, context, size as u64)?)
}

fn free(address: u64, stream: CUstream) -> Answer {
    let driver = driver()?;
    let key = resolve(stream)?;
    if address == 0 {
        return Ok(());
    }
    if capture::is_capturing(key)? {
        return capture::add_step(key, Step::Free { address }).map(|_| ());
    }
    let mut world = world()?;
    match world.memory.at(address).map(|found| found.kind.clone()) {
        Some(Kind::Pool(pool)) => {
            world.free_to_pool(driver, address, true)?;
            if let Ok(pool) = world.pools.live.get_mut(as_pointer::<()>(pool)) {
                pool.fences.push(fence(key)?);
            }
            Ok(())
        }
        Some(Kind::Small | Kind::Own(_)) if world.memory.is_deferred(address) => Err(INVALID_VALUE),
        Some(Kind::Small | Kind::Own(_)) => {
            let fence = fence(key)?;
            world.memory.deferred.push((address, fence));
            Ok(())
        }
        Some(Kind::Managed { .. }) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        Some(_) => world.free(driver, address),
        None => Err(INVALID_VALUE),
    }
}

fn with<T>(pool: CUmemoryPool, body: impl FnOnce(&mut Pool) -> Answer<T>) -> Answer<T> {
    body(world()?.pools.live.get_mut(pool).map_err(|_| INVALID_VALUE)?)
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
        driver.physical(properties.location.id).map_err(|_| INVALID_VALUE)?;
        let pool = world()?.make_pool(driver, properties.location.id, properties.maxSize as u64)?;
        put(out, as_pointer(pool))
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        let driver = driver()?;
        let mut world = world()?;
        if world.pools.defaults.values().any(|&default| default == pool.addr()) {
            return Err(INVALID_VALUE);
        }
        world.pools.current.retain(|_, current| *current != pool.addr());
        let found = world.pools.live.get_mut(pool).map_err(|_| INVALID_VALUE)?;
        found.destroyed = true;
        if found.live == 0 {
            let gone = world.pools.live.remove(pool)?;
            driver.release(gone.ordinal, gone.reserved(), Part::Visible);
            world.memory.arena.give(gone.base, SPACE);
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        let driver = driver()?;
        capture::forbid()?;
        let (ordinal, bytes) = with(pool, |pool| Ok((pool.ordinal, pool.trim(keep as u64))))?;
        driver.release(ordinal, bytes, Part::Visible);
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut std::ffi::c_void) {
        with(pool, |pool| {
            match attribute {
                1..=3 => pool.flags[attribute as usize] = get(value.cast())?,
                4 => pool.threshold = get(value.cast())?,
                6 if get(value.cast::<u64>())? == 0 => pool.reserved_high = pool.reserved(),
                8 if get(value.cast::<u64>())? == 0 => pool.used_high = pool.used,
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut std::ffi::c_void) {
        capture::forbid()?;
        with(pool, |pool| match attribute {
            1..=3 => put(value.cast(), pool.flags[attribute as usize]),
            4 => put(value.cast(), pool.threshold),
            5 => put(value.cast(), pool.reserved()),
            6 => put(value.cast(), pool.reserved_high),
            7 => put(value.cast(), pool.used),
            8 => put(value.cast(), pool.used_high),
            _ => Err(INVALID_VALUE),
        })
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, _map: *const std::ffi::c_void, _count: usize) { with(pool, |_| Ok(())) }
    fn cuMemPoolGetAccess(flags: *mut u32, pool: CUmemoryPool, _location: *mut std::ffi::c_void) {
        with(pool, |_| Ok(()))?;
        put(flags, 3)
    }

    fn cuDeviceGetDefaultMemPool(out: *mut CUmemoryPool, device: i32) {
        let driver = driver()?;
        let pool = world()?.default_pool(driver, device)?;
        put(out, as_pointer(pool))
    }

    fn cuDeviceGetMemPool(out: *mut CUmemoryPool, device: i32) {
        let driver = driver()?;
        let pool = world()?.current_pool(driver, device)?;
        put(out, as_pointer(pool))
    }

    fn cuDeviceSetMemPool(device: i32, pool: CUmemoryPool) {
        driver()?.physical(device)?;
        let mut world = world()?;
        let found = world.pools.live.get(pool).map_err(|_| INVALID_VALUE)?;
        if found.ordinal != device {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        world.pools.current.insert(device, pool.addr());
        Ok(())
    }
}
