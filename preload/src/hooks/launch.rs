//! Launches: the entry points that take GPU time.

use crate::compute::collectives;
use crate::compute::pacing::{around, around_any, graph_key, kernel_key};
use crate::hooks::graphs;
use crate::hooks::local_memory;
use vgpu_cuda_abi::cuda::{Handle, LaunchConfig, LaunchParams, Status};

/// Launches a kernel with `call` when the compute limit allows it, and measures it. Its local memory is claimed first.
///
/// `grid` is in blocks, `block` in threads; zeros stand for a shape that was set by an earlier call.
#[inline]
pub fn kernel(call: impl FnOnce() -> Status, function: Handle, stream: Handle, grid: [u32; 3], block: [u32; 3]) -> Status {
    let growth = match local_memory::before(function) {
        Ok(growth) => growth,
        Err(status) => return status,
    };
    let status = around_any(stream, move || kernel_key(function, grid, block), move || collectives::is_one(function), call);
    if let Some(growth) = growth {
        growth.end();
    }
    status
}

/// Launches a kernel whose shape and stream are in `config`. `effective` maps the configured stream to the one that the call uses.
#[inline]
pub unsafe fn kernel_by_config(
    call: impl FnOnce() -> Status,
    function: Handle,
    config: *const LaunchConfig,
    effective: impl FnOnce(Handle) -> Handle,
) -> Status {
    // SAFETY: the caller's promise.
    match unsafe { config.as_ref() } {
        Some(config) => kernel(call, function, effective(config.stream), config.grid, config.block),
        None => call(),
    }
}

/// Launches one kernel for each entry of `list`. The entries are on different GPUs, so each is paced by its own limit.
pub unsafe fn kernels(mut call: impl FnMut() -> Status, list: *const LaunchParams, count: u32) -> Status {
    fn each(list: &[LaunchParams], call: &mut dyn FnMut() -> Status) -> Status {
        match list.split_first() {
            Some((first, rest)) => kernel(|| each(rest, call), first.function, first.stream, first.grid, first.block),
            None => call(),
        }
    }
    // SAFETY: the caller's promise.
    let list = if list.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(list, count.min(64) as usize) } };
    each(list, &mut call)
}

/// Launches an instantiated graph. Whether it waits for other GPUs was recorded when it was instantiated.
#[inline]
pub fn graph(call: impl FnOnce() -> Status, exec: Handle, stream: Handle) -> Status {
    around(stream, || graph_key(exec), || graphs::run(call, exec))
}
