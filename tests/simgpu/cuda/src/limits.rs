//! `cuCtxSetLimit` and `cuCtxGetLimit`.

use cudarc::driver::sys::CUresult;

use crate::driver::{driver, state};
use crate::ffi::put;

const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT;

api! {
    fn cuCtxSetLimit(limit: u32, value: usize) {
        let driver = driver()?;
        let mut state = state()?;
        let context = state.current()?;
        let object = state.context(context)?;
        let (mut limits, heap_used) = (object.limits, object.heap_used);
        let value = value as u64;
        match limit {
            0 => limits.stack = value.next_multiple_of(16),
            1 => limits.fifo = value,
            2 if heap_used => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            2 => limits.heap = value.next_multiple_of(4 << 20),
            4..=6 => return Ok(()),
            _ => return Err(UNSUPPORTED),
        }
        state.apply_limits(driver, context, limits, heap_used)
    }

    fn cuCtxGetLimit(out: *mut usize, limit: u32) {
        let state = state()?;
        let limits = state.context(state.current()?)?.limits;
        let value = match limit {
            0 => limits.stack,
            1 => limits.fifo,
            2 => limits.heap,
            4 => 2048,
            5 => 64,
            6 => 11_796_480,
            _ => return Err(UNSUPPORTED),
        };
        put(out, value as usize)
    }

    fn cuCtxGetCacheConfig(out: *mut u32) {
        state()?.current()?;
        put(out, 0)
    }
    fn cuCtxSetCacheConfig(_config: u32) { state()?.current().map(|_| ()) }
    fn cuCtxResetPersistingL2Cache() { state()?.current().map(|_| ()) }
    fn cuCtxEnablePeerAccess(peer: cudarc::driver::sys::CUcontext, _flags: u32) { state()?.context(peer.addr()).map(|_| ()) }
    fn cuCtxDisablePeerAccess(peer: cudarc::driver::sys::CUcontext) { state()?.context(peer.addr()).map(|_| ()) }
    fn cuProfilerStart() { driver().map(|_| ()) }
    fn cuProfilerStop() { driver().map(|_| ()) }
}
