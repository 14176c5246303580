//! `cuMemAlloc` and related functions, `cuMemFree`, `cuMemGetInfo`.

use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, OUT_OF_MEMORY, put, put_optional};
use crate::objects::{Kind, granules};
use crate::stream::capture;
use crate::stream::queues::drain;

fn allocate(out: *mut u64, size: u64) -> CudaResult {
    let driver = driver()?;
    let mut state = state()?;
    let context = state.current()?;
    put(out, 0)?;
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    capture::reject_unsafe_call()?;
    put(out, state.allocate(driver, context, size)?)
}

fn allocate_pitch(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) -> CudaResult {
    state()?.current()?;
    if out.is_null() || pitch.is_null() || width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
        return Err(INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(512).ok_or(OUT_OF_MEMORY)?;
    let size = row.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
    allocate(out, size as u64)?;
    put(pitch, row)
}

fn memory_info(free: *mut usize, total: *mut usize) -> CudaResult {
    let driver = driver()?;
    let mut state = state()?;
    let ordinal = state.current_gpu()?.1;
    state.free_closed_exports(driver);
    let memory = driver.device().memory(driver.gpu_index(ordinal)?);
    put_optional(free, memory.free as usize);
    put_optional(total, (memory.total - memory.reserved) as usize);
    Ok(())
}

fn address_range(base: *mut u64, size: *mut usize, address: u64) -> CudaResult {
    let state = state()?;
    state.current()?;
    let (start, allocation) = state.memory.containing(address).ok_or(cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_FOUND)?;
    put_optional(base, start);
    put_optional(size, allocation.size as usize);
    Ok(())
}

fn free(address: u64) -> CudaResult {
    let driver = driver()?;
    let state = state()?;
    if address == 0 {
        return Ok(());
    }
    let found = state.memory.at(address).filter(|_| !state.memory.is_deferred(address));
    let context = found.ok_or(INVALID_VALUE)?.context;
    drop(state);
    capture::reject_unsafe_call()?;
    // cuMemFree is synchronous: it waits for all work that might use the memory.
    drain(|queue| queue.context == context)?;
    self::state()?.free(driver, address)
}

/// Fails an allocation of the first API version: its pointers have 32 bits, and no address fits.
fn refuse_32_bit(out: *mut u32) -> CudaResult {
    state()?.current()?;
    put(out, 0)?;
    Err(OUT_OF_MEMORY)
}

api! {
    fn cuMemAlloc(out: *mut u32, _size: u32) { refuse_32_bit(out) }
    fn cuMemAlloc_v2(out: *mut u64, size: usize) { allocate(out, size as u64) }
    fn cuMemAlloc_v3(out: *mut u64, size: usize) { allocate(out, size as u64) }
    fn cuMemAllocPitch_v2(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) {
        allocate_pitch(out, pitch, width, height, element)
    }

    fn cuMemAllocManaged(out: *mut u64, size: usize, flags: u32) {
        driver()?;
        let mut state = state()?;
        let (context, ordinal) = state.current_gpu()?;
        put(out, 0)?;
        if size == 0 || ![1, 2].contains(&flags) {
            return Err(INVALID_VALUE);
        }
        capture::reject_unsafe_call()?;
        let space = granules(size as u64)?;
        let address = state.memory.arena.take(space).ok_or(OUT_OF_MEMORY)?;
        state.memory.add(address, size as u64, ordinal, context, Kind::Managed { space, resident: 0, prefers_host: false });
        put(out, address)
    }

    fn cuMemFree(address: u32) { free(u64::from(address)) }
    fn cuMemFree_v2(address: u64) { free(address) }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) { memory_info(free, total) }

    fn cuMemGetInfo(free: *mut u32, total: *mut u32) {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        memory_info(&raw mut free_bytes, &raw mut total_bytes)?;
        put_optional(free, u32::try_from(free_bytes).unwrap_or(u32::MAX));
        put_optional(total, u32::try_from(total_bytes).unwrap_or(u32::MAX));
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) { address_range(base, size, address) }
}
