//! Submission of work to streams.

use cudarc::driver::sys::CUstream;

use super::capture;
use super::queues::{push, wait_for};
use super::resolve::resolve;
use crate::driver::{driver, state};
use crate::ffi::CudaResult;
use crate::objects::Work;

/// Submits work to a stream, or to its graph if the stream is being captured.
pub fn submit(stream: CUstream, work: Work) -> CudaResult {
    let key = resolve(stream)?;
    if capture::record(key, &work)? { Ok(()) } else { push(key, work).map(|_| ()) }
}

/// Submits work to a stream and waits for it.
pub fn submit_and_wait(stream: CUstream, work: Work) -> CudaResult {
    let key = resolve(stream)?;
    capture::reject_capturing_stream(key)?;
    let sequence = push(key, work)?;
    wait_for(key, sequence)
}

/// Releases memory that may be reclaimed after the host has synchronized.
pub fn reclaim_after_wait() -> CudaResult {
    let driver = driver()?;
    let mut state = state()?;
    state.free_deferred(driver)?;
    state.trim_pools(driver)
}
