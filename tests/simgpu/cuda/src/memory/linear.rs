//! `cuMemAlloc` and its kin, `cuMemFree`, `cuMemGetInfo`.

use super::{Kind, granules};
use crate::driver::{driver, world};
use crate::ffi::{Answer, INVALID_VALUE, OUT_OF_MEMORY, put, put_if};
use crate::graph::capture;
use crate::stream::queues::drain;

fn allocate(out: *mut u64, size: u64) -> Answer {
    let driver = driver()?;
    let mut world = world()?;
    let context = world.current()?;
    put(out, 0)?;
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    capture::forbid()?;
    put(out, world.allocate(driver, context, size)?)
}

fn allocate_pitch(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) -> Answer {
    world()?.current()?;
    if out.is_null() || pitch.is_null() || width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
        return Err(INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(512).ok_or(OUT_OF_MEMORY)?;
    let size = row.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
    allocate(out, size as u64)?;
    put(pitch, row)
}

fn info(free: *mut usize, total: *mut usize) -> Answer {
    let driver = driver()?;
    let mut world = world()?;
    let ordinal = world.current_gpu()?.1;
    world.free_closed(driver);
    let memory = driver.device().memory(driver.physical(ordinal)?);
    put_if(free, memory.free as usize);
    put_if(total, (memory.total - memory.reserved) as usize);
    Ok(())
}

fn range(base: *mut u64, size: *mut usize, address: u64) -> Answer {
    let world = world()?;
    world.current()?;
    let (start, allocation) = world.memory.around(address).ok_or(cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_FOUND)?;
    put_if(base, start);
    put_if(size, allocation.size as usize);
    Ok(())
}

fn free(address: u64) -> Answer {
    let driver = driver()?;
    let world = world()?;
    if address == 0 {
        return Ok(());
    }
    let found = world.memory.at(address).filter(|_| !world.memory.is_deferred(address));
    let context = found.ok_or(INVALID_VALUE)?.context;
    drop(world);
    capture::forbid()?;
    // Freeing waits for everything that might use the memory.
    drain(|queue| queue.context == context)?;
    self::world()?.free(driver, address)
}

/// The first versions have 32-bit sizes and pointers, which no address here fits.
fn small_pointer(out: *mut u32) -> Answer {
    world()?.current()?;
    put(out, 0)?;
    Err(OUT_OF_MEMORY)
}

api! {
    fn cuMemAlloc(out: *mut u32, _size: u32) { small_pointer(out) }
    fn cuMemAlloc_v2(out: *mut u64, size: usize) { allocate(out, size as u64) }
    fn cuMemAllocPitch_v2(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) {
        allocate_pitch(out, pitch, width, height, element)
    }

    fn cuMemAllocManaged(out: *mut u64, size: usize, flags: u32) {
        driver()?;
        let mut world = world()?;
        let (context, ordinal) = world.current_gpu()?;
        put(out, 0)?;
        if size == 0 || ![1, 2].contains(&flags) {
            return Err(INVALID_VALUE);
        }
        capture::forbid()?;
        let space = granules(size as u64)?;
        let address = world.memory.arena.take(space).ok_or(OUT_OF_MEMORY)?;
        world.memory.add(address, size as u64, ordinal, context, Kind::Managed { space, resident: 0, on_host: false });
        put(out, address)
    }

    fn cuMemFree(address: u32) { free(u64::from(address)) }
    fn cuMemFree_v2(address: u64) { free(address) }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) { info(free, total) }

    fn cuMemGetInfo(free: *mut u32, total: *mut u32) {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        info(&raw mut free_bytes, &raw mut total_bytes)?;
        put_if(free, u32::try_from(free_bytes).unwrap_or(u32::MAX));
        put_if(total, u32::try_from(total_bytes).unwrap_or(u32::MAX));
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) { range(base, size, address) }
}
