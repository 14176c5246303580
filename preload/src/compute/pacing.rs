//! Entry to the compute limiter for hooks of calls that take GPU time.

use crate::compute::cuda_engine::Cuda;
use crate::compute::streams;
use crate::compute::streams::State;
use crate::compute::switcher;
use crate::loader::driver;
use crate::memory::objects::captures;
use vgpu_cuda_abi::cuda::{Handle, Status};
use vgpu_gpu_limiter::{batch_close, cost_model, launch};

/// Makes a launch when the limit allows it, and measures it. `key` returns the key of its kind ([`cost_model::key`]).
#[inline]
pub fn around(stream: Handle, key: impl FnOnce() -> u64, call: impl FnOnce() -> Status) -> Status {
    around_any(stream, key, || false, call)
}

/// Makes a launch that may wait for other GPUs, if `is_collective` returns true.
#[inline]
pub fn around_any(
    stream: Handle,
    key: impl FnOnce() -> u64,
    is_collective: impl FnOnce() -> bool,
    call: impl FnOnce() -> Status,
) -> Status {
    match streams::limited() {
        Ok(None) => call(),
        Ok(Some(state)) => limited(state, stream, key(), is_collective, call),
        Err(status) => status,
    }
}

/// Makes a launch of a process with a compute limit: finds its stream and meter, and lets the limiter decide when.
#[inline]
fn limited(state: &'static State, handle: Handle, key: u64, is_collective: impl FnOnce() -> bool, call: impl FnOnce() -> Status) -> Status {
    // A captured launch takes no GPU time now; a launch of the graph will.
    if is_captured(handle) {
        return call();
    }
    let (stream, meter) = match state.find(handle) {
        Some(known) => known,
        None => match state.add(handle) {
            Ok(Some(known)) => {
                switcher::start_once(state);
                known
            }
            Ok(None) => return call(),
            Err(status) => return status,
        },
    };
    let engine = Cuda { context: meter.context };
    launch::launch(&engine, meter, (stream, handle), key, is_collective, call).unwrap_or_else(streams::no_memory)
}

/// Returns true if launches into the stream are recorded instead of run, or if the driver will refuse them because of a capture.
#[inline]
fn is_captured(stream: Handle) -> bool {
    captures::has_begun() && driver::is_captured(stream)
}

/// Called before other work than a launch follows in the stream, such as a copy or a wait.
#[inline]
pub fn interrupt(handle: Handle) {
    if let Some(state) = streams::known()
        && !is_captured(handle)
        && let Some((stream, meter)) = state.find(handle)
    {
        batch_close::interrupt(&Cuda { context: meter.context }, meter, stream, handle);
    }
}

/// Returns the key of a kernel's launches, by function, grid and block.
pub fn kernel_key(function: Handle, grid: [u32; 3], block: [u32; 3]) -> u64 {
    let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
    cost_model::key(&[function as u64, pair(grid[0], grid[1]), pair(grid[2], block[0]), pair(block[1], block[2])])
}

/// Returns the key of memory operations, by operation and order of magnitude of their size.
pub fn memory_key(what: u64, bytes: usize) -> u64 {
    cost_model::key(&[what, u64::from(bytes.max(1).ilog2())])
}

/// Returns the key of a graph's launches.
pub fn graph_key(exec: Handle) -> u64 {
    cost_model::key(&[exec as u64, 1])
}

/// Returns true if launches are held to a compute limit.
pub fn is_limited() -> bool {
    streams::known().is_some()
}

/// Called after a graph was instantiated or updated. `is_collective` tells whether it waits for other GPUs.
pub fn renew_graph(exec: Handle, is_collective: bool) {
    if let Some(state) = streams::known() {
        state.redefine(graph_key(exec), is_collective);
    }
}
