//! What every hook that takes GPU time goes through.

use crate::compute::cuda_engine::Cuda;
use crate::compute::streams;
use crate::compute::streams::State;
use crate::loader::driver;
use crate::memory::objects::captures;
use vgpu_cuda_abi::cuda::{Handle, SUCCESS, Status};
use vgpu_gpu_limiter::{batch_close, cost_model, launch};

/// Makes a launch when it may be made, and measures it. `key` says what kind of launch it is.
#[inline]
pub fn around(stream: Handle, key: impl FnOnce() -> u64, call: impl FnOnce() -> Status) -> Status {
    around_any(stream, key, || false, call)
}

/// The same for what may wait for other GPUs, as `is_collective` tells.
#[inline]
pub fn around_any(
    stream: Handle,
    key: impl FnOnce() -> u64,
    is_collective: impl FnOnce() -> bool,
    call: impl FnOnce() -> Status,
) -> Status {
    match streams::limited() {
        Ok(None) => call(),
        Ok(Some(state)) => held(state, stream, key(), is_collective, call),
        Err(status) => status,
    }
}

#[inline]
fn held(state: &'static State, handle: Handle, key: u64, is_collective: impl FnOnce() -> bool, call: impl FnOnce() -> Status) -> Status {
    // What is being captured takes no time now. The graph will.
    if is_captured(handle) {
        return call();
    }
    let (stream, meter) = match state.find(handle) {
        Some(known) => known,
        None => match state.meet(handle) {
            Ok(Some(known)) => known,
            Ok(None) => return call(),
            Err(status) => return status,
        },
    };
    let engine = Cuda { context: meter.context() };
    launch::launch(&engine, meter, (stream, handle), key, is_collective, call).unwrap_or_else(streams::no_memory)
}

/// Whether launches into the stream are recorded instead of run; also where the driver will refuse them because of a capture.
#[inline]
fn is_captured(stream: Handle) -> bool {
    let mut capturing = 0;
    // SAFETY: the program's own stream; the driver writes one integer.
    captures::has_begun() && unsafe { driver::is_capturing(stream, &raw mut capturing) != SUCCESS || capturing != 0 }
}

/// Something that is not compute work, or waits for something else, follows in the stream.
#[inline]
pub fn interrupt(handle: Handle) {
    if let Some(state) = streams::known()
        && !is_captured(handle)
        && let Some((stream, meter)) = state.find(handle)
    {
        batch_close::interrupt(&Cuda { context: meter.context() }, meter, stream, handle);
    }
}

pub fn kernel_key(function: Handle, grid: [u32; 3], block: [u32; 3]) -> u64 {
    let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
    cost_model::key(&[function as u64, pair(grid[0], grid[1]), pair(grid[2], block[0]), pair(block[1], block[2])])
}

/// A kind for memory operations, by what they do and the order of magnitude of their size.
pub fn memory_key(what: u64, bytes: usize) -> u64 {
    cost_model::key(&[what, u64::from(bytes.max(1).ilog2())])
}

pub fn graph_key(exec: Handle) -> u64 {
    cost_model::key(&[exec as u64, 1])
}

/// Whether launches are held to a compute limit.
pub fn is_limited() -> bool {
    streams::known().is_some()
}

/// A graph was made launchable, or made anew, and waits for other GPUs or not.
pub fn renew_graph(exec: Handle, is_collective: bool) {
    if let Some(state) = streams::known() {
        state.renew(graph_key(exec), is_collective);
    }
}
