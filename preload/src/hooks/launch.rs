//! The entry points that take GPU time, and those that come between launches.
//!
//! `OWN` is true for the forms with `_ptsz`, which mean the thread's own default stream by 0.

use core::ffi::c_void;

use crate::compute::collectives;
use crate::compute::pacing::{around, around_any, graph_key, kernel_key};
use crate::hooks::graphs;
use crate::hooks::local_memory;
use vgpu_cuda_abi::cuda::{Handle, LaunchConfig, LaunchParams, Status, meant};
use vgpu_gpu_limiter::cost_model;

/// Makes a kernel's launch when it may be made, and measures it. Its local memory has to fit first.
#[inline]
fn around_kernel(function: Handle, stream: Handle, key: impl FnOnce() -> u64, call: impl FnOnce() -> Status) -> Status {
    let growth = match local_memory::before(function) {
        Ok(growth) => growth,
        Err(status) => return status,
    };
    let status = around_any(stream, key, move || collectives::is_one(function), call);
    if let Some(growth) = growth {
        growth.end();
    }
    status
}

type LaunchKernel = unsafe extern "C" fn(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;

/// `cuLaunchKernel`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn launch_kernel<const OWN: bool>(
    real: LaunchKernel,
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    around_kernel(
        function,
        meant::<OWN>(stream),
        move || kernel_key(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]),
        // SAFETY: the program's own arguments.
        move || unsafe { real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra) },
    )
}

type Cooperative = unsafe extern "C" fn(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void) -> Status;

/// `cuLaunchCooperativeKernel`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn cooperative<const OWN: bool>(
    real: Cooperative,
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    parameters: *mut *mut c_void,
) -> Status {
    around_kernel(
        function,
        meant::<OWN>(stream),
        move || kernel_key(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]),
        // SAFETY: the program's own arguments.
        move || unsafe { real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters) },
    )
}

type LaunchEx = unsafe extern "C" fn(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;

/// `cuLaunchKernelEx`
pub unsafe fn launch_ex<const OWN: bool>(
    real: LaunchEx,
    config: *const LaunchConfig,
    function: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    // SAFETY: the program's own arguments; the configuration is null or a whole one.
    unsafe {
        let call = move || real(config, function, parameters, extra);
        match config.as_ref() {
            Some(config) => {
                around_kernel(function, meant::<OWN>(config.stream), move || kernel_key(function, config.grid, config.block), call)
            }
            None => call(),
        }
    }
}

/// `cuLaunchCooperativeKernelMultiDevice`: one launch for each entry of the list.
pub unsafe fn cooperative_multi_device(
    real: unsafe extern "C" fn(*mut LaunchParams, u32, u32) -> Status,
    list: *mut LaunchParams,
    count: u32,
    flags: u32,
) -> Status {
    fn each(list: &[LaunchParams], call: &mut dyn FnMut() -> Status) -> Status {
        match list.split_first() {
            Some((first, rest)) => {
                around_kernel(first.function, first.stream, || kernel_key(first.function, first.grid, first.block), || each(rest, call))
            }
            None => call(),
        }
    }
    // SAFETY: the program's own arguments: a list of that many entries.
    unsafe {
        let known: &[LaunchParams] = if list.is_null() { &[] } else { core::slice::from_raw_parts(list, count.min(64) as usize) };
        each(known, &mut || real(list, count, flags))
    }
}

/// `cuLaunch`
pub unsafe fn launch(real: unsafe extern "C" fn(Handle) -> Status, function: Handle) -> Status {
    // SAFETY: the program's own argument.
    around_kernel(function, core::ptr::null_mut(), || cost_model::key(&[function as u64]), || unsafe { real(function) })
}

/// `cuLaunchGrid`
pub unsafe fn launch_grid(real: unsafe extern "C" fn(Handle, i32, i32) -> Status, function: Handle, width: i32, height: i32) -> Status {
    let key = || kernel_key(function, [width as u32, height as u32, 0], [0; 3]);
    // SAFETY: the program's own arguments.
    around_kernel(function, core::ptr::null_mut(), key, || unsafe { real(function, width, height) })
}

/// `cuLaunchGridAsync`
pub unsafe fn launch_grid_async(
    real: unsafe extern "C" fn(Handle, i32, i32, Handle) -> Status,
    function: Handle,
    width: i32,
    height: i32,
    stream: Handle,
) -> Status {
    let key = || kernel_key(function, [width as u32, height as u32, 0], [0; 3]);
    // SAFETY: the program's own arguments.
    around_kernel(function, stream, key, || unsafe { real(function, width, height, stream) })
}

/// `cuGraphLaunch`
pub unsafe fn graph_launch<const OWN: bool>(real: unsafe extern "C" fn(Handle, Handle) -> Status, exec: Handle, stream: Handle) -> Status {
    // Whether it waits for other GPUs was noted when it was made.
    // SAFETY: the program's own arguments.
    around(meant::<OWN>(stream), || graph_key(exec), || unsafe { graphs::launch(real, exec, stream) })
}
