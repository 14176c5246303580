//! Stream-ordered memory.

use super::common::{Allocate, pool_properties, stream};
use crate::cuda::check;
use crate::cuda::sys::{self, CUmemoryPool, CUresult, CUstream};

/// Chunks from this size on are waited for one by one.
const WAITED_FOR: usize = 1 << 20;

fn wait(stream: CUstream, bytes: usize) -> Result<u64, CUresult> {
    if bytes >= WAITED_FOR {
        // SAFETY: the stream belongs to this module.
        check(unsafe { sys::cuStreamSynchronize(stream) })?;
    }
    Ok(bytes as u64)
}

pub fn default_pool(_ordinal: i32) -> Result<Allocate, CUresult> {
    let stream = stream()?;
    Ok(Box::new(move |bytes| {
        let mut address = 0;
        // SAFETY: the out-pointer is valid.
        check(unsafe { sys::cuMemAllocAsync(&raw mut address, bytes, stream) })?;
        wait(stream, bytes)
    }))
}

fn pool(ordinal: i32) -> Result<CUmemoryPool, CUresult> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: the properties and the out-pointer are valid.
    check(unsafe { sys::cuMemPoolCreate(&raw mut pool, &pool_properties(ordinal)) })?;
    Ok(pool)
}

pub fn own_pool(ordinal: i32) -> Result<Allocate, CUresult> {
    let (pool, stream) = (pool(ordinal)?, stream()?);
    Ok(Box::new(move |bytes| {
        let mut address = 0;
        // SAFETY: the out-pointer is valid.
        check(unsafe { sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, stream) })?;
        wait(stream, bytes)
    }))
}

/// Allocates while another stream captures. The capture and this thread are in relaxed mode in turn, so that neither invalidates the
/// other.
pub fn during_capture(_ordinal: i32) -> Result<Allocate, CUresult> {
    use sys::CUstreamCaptureMode::*;
    let (relaxed, global) = (CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL);
    let (stream, captured, mut modes) = (stream()?, stream()?, [(relaxed, global), (global, relaxed)].into_iter().cycle());
    Ok(Box::new(move |bytes| {
        let (mut address, mut graph) = (0, std::ptr::null_mut());
        let (of_capture, mut of_thread) = modes.next().unwrap_or((relaxed, relaxed));
        // SAFETY: the streams belong to this method; the out-pointers are valid.
        unsafe {
            check(sys::cuStreamBeginCapture_v2(captured, of_capture))?;
            check(sys::cuThreadExchangeStreamCaptureMode(&raw mut of_thread))?;
            let code = sys::cuMemAllocAsync(&raw mut address, bytes, stream);
            check(sys::cuThreadExchangeStreamCaptureMode(&raw mut of_thread))?;
            check(sys::cuStreamEndCapture(captured, &raw mut graph))?;
            check(sys::cuGraphDestroy(graph))?;
            check(code)?;
        }
        wait(stream, bytes)
    }))
}

pub fn set_pool(ordinal: i32) -> Result<Allocate, CUresult> {
    // SAFETY: the pool was just created on that GPU.
    check(unsafe { sys::cuDeviceSetMemPool(ordinal, pool(ordinal)?) })?;
    default_pool(ordinal)
}

/// A pool that keeps freed memory, which the next allocation reuses.
pub fn retained(ordinal: i32) -> Result<Allocate, CUresult> {
    let (pool, stream) = (pool(ordinal)?, stream()?);
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a 64-bit number.
    check(unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) })?;
    Ok(Box::new(move |bytes| {
        let mut address = 0;
        for freed in [true, false] {
            // SAFETY: the out-pointer is valid; the first allocation is freed once.
            unsafe {
                check(sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, stream))?;
                if freed {
                    check(sys::cuMemFreeAsync(address, stream))?;
                }
                check(sys::cuStreamSynchronize(stream))?;
            }
        }
        Ok(bytes as u64)
    }))
}
