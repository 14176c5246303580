//! The entry points that take GPU time, and those that come between launches.
//!
//! `OWN` is true for the forms with `_ptsz`, which mean the thread's own default stream by 0.

use core::ffi::c_void;

use super::cuda_engine::Cuda;
use super::state::{self, State};
use super::{collective, cost, ends, pace};
use crate::cuda::{Device, DevicePtr, Handle, LaunchConfig, LaunchParams, SUCCESS, Status};
use crate::{driver, memory, session};

/// `CU_STREAM_PER_THREAD`
const PER_THREAD: Handle = 2 as Handle;

/// The stream that a function means: of 0, one with `_ptsz` (`OWN`) means the thread's own default stream.
#[inline]
pub fn meant<const OWN: bool>(stream: Handle) -> Handle {
    if OWN && stream.is_null() { PER_THREAD } else { stream }
}

/// Makes a launch when it may be made, and measures it. `key` says what kind of launch it is.
#[inline]
pub(super) fn around(stream: Handle, key: impl FnOnce() -> u64, call: impl FnOnce() -> Status) -> Status {
    around_any(stream, key, || false, call)
}

/// The same for what may wait for other GPUs, as `is_collective` tells.
#[inline]
fn around_any(stream: Handle, key: impl FnOnce() -> u64, is_collective: impl FnOnce() -> bool, call: impl FnOnce() -> Status) -> Status {
    match state::limited() {
        Ok(None) => call(),
        Ok(Some(state)) => held(state, stream, key(), is_collective, call),
        Err(status) => status,
    }
}

/// The same for a kernel: its local memory has to fit first.
#[inline]
fn around_kernel(function: Handle, stream: Handle, key: impl FnOnce() -> u64, call: impl FnOnce() -> Status) -> Status {
    let growth = match memory::local::before(function) {
        Ok(growth) => growth,
        Err(status) => return status,
    };
    let status = around_any(stream, key, move || collective::is_one(function), call);
    if let Some(growth) = growth {
        growth.end();
    }
    status
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
    pace::launch(&engine, meter, (stream, handle), key, is_collective, call).unwrap_or_else(state::no_memory)
}

/// Whether launches into the stream are recorded instead of run; also where the driver will refuse them because of a capture.
#[inline]
fn is_captured(stream: Handle) -> bool {
    let mut capturing = 0;
    // SAFETY: the program's own stream; the driver writes one integer.
    memory::capture::has_begun() && unsafe { driver::is_capturing(stream, &raw mut capturing) != SUCCESS || capturing != 0 }
}

/// Something that is not compute work, or waits for something else, follows in the stream.
#[inline]
pub(super) fn interrupt(handle: Handle) {
    if let Some(state) = state::known()
        && !is_captured(handle)
        && let Some((stream, meter)) = state.find(handle)
    {
        ends::interrupt(&Cuda { context: meter.context() }, meter, stream, handle);
    }
}

fn kernel_key(function: Handle, grid: [u32; 3], block: [u32; 3]) -> u64 {
    let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
    cost::key(&[function as u64, pair(grid[0], grid[1]), pair(grid[2], block[0]), pair(block[1], block[2])])
}

/// A kind for memory operations, by what they do and the order of magnitude of their size.
pub(super) fn memory_key(what: u64, bytes: usize) -> u64 {
    cost::key(&[what, u64::from(bytes.max(1).ilog2())])
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
    around_kernel(function, core::ptr::null_mut(), || cost::key(&[function as u64]), || unsafe { real(function) })
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

fn graph_key(exec: Handle) -> u64 {
    cost::key(&[exec as u64, 1])
}

/// Whether launches are held to a compute limit.
pub fn is_limited() -> bool {
    state::known().is_some()
}

/// A graph was made launchable, or made anew, and waits for other GPUs or not.
pub fn renew_graph(exec: Handle, is_collective: bool) {
    if let Some(state) = state::known() {
        state.renew(graph_key(exec), is_collective);
    }
}

/// `cuGraphLaunch`
pub unsafe fn graph_launch<const OWN: bool>(real: unsafe extern "C" fn(Handle, Handle) -> Status, exec: Handle, stream: Handle) -> Status {
    // Whether it waits for other GPUs was noted when it was made.
    // SAFETY: the program's own arguments.
    around(meant::<OWN>(stream), || graph_key(exec), || unsafe { memory::graph::launch(real, exec, stream) })
}

type CopyAsync = unsafe extern "C" fn(u64, u64, usize, Handle) -> Status;

/// Copies within the device, which take its memory's bandwidth: `cuMemcpyDtoDAsync_v2`
pub unsafe fn copy_device<const OWN: bool>(real: CopyAsync, to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    // SAFETY: the program's own arguments.
    around(meant::<OWN>(stream), || memory_key(2, bytes), || unsafe { real(to, from, bytes, stream) })
}

/// `cuMemsetD8Async`, `cuMemsetD16Async`, `cuMemsetD32Async`: the value is passed on as it came.
pub unsafe fn set<const OWN: bool>(
    real: unsafe extern "C" fn(DevicePtr, u32, usize, Handle) -> Status,
    address: DevicePtr,
    value: u32,
    count: usize,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    around(meant::<OWN>(stream), || memory_key(3, count), || unsafe { real(address, value, count, stream) })
}

/// Copies from and to the host run beside the kernels of others: `cuMemcpyHtoDAsync_v2`, `cuMemcpyDtoHAsync_v2`, `cuMemcpyAsync`
pub unsafe fn copy_host<const OWN: bool>(real: CopyAsync, to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    unsafe { real(to, from, bytes, stream) }
}

/// `cuStreamWaitEvent`
pub unsafe fn wait_event<const OWN: bool>(
    real: unsafe extern "C" fn(Handle, Handle, u32) -> Status,
    stream: Handle,
    event: Handle,
    flags: u32,
) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    unsafe { real(stream, event, flags) }
}

type WaitValue = unsafe extern "C" fn(Handle, DevicePtr, u64, u32) -> Status;

/// `cuStreamWaitValue32_v2`, `cuStreamWaitValue64_v2`: the value is passed on as it came.
pub unsafe fn wait_value<const OWN: bool>(real: WaitValue, stream: Handle, address: DevicePtr, value: u64, flags: u32) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    unsafe { real(stream, address, value, flags) }
}

type HostFunction = unsafe extern "C" fn(Handle, *mut c_void, *mut c_void) -> Status;

/// `cuLaunchHostFunc`
pub unsafe fn host_function<const OWN: bool>(real: HostFunction, stream: Handle, function: *mut c_void, data: *mut c_void) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    unsafe { real(stream, function, data) }
}

/// `cuStreamDestroy` and `cuStreamDestroy_v2`
pub unsafe fn stream_destroy(real: unsafe extern "C" fn(Handle) -> Status, stream: Handle) -> Status {
    if let Some(state) = state::known() {
        interrupt(stream);
        state.retire(stream);
    }
    // SAFETY: the program's own argument.
    memory::capture::ending(stream, || unsafe { memory::ordered::after_wait(real, stream) })
}

/// Ends a context with `call`. Whoever destroys one waits for what runs in it, so what that is found to take is known.
fn ending(context: Handle, call: impl FnOnce() -> Status) -> Status {
    let left = state::known().and_then(|state| state.close(context));
    let began = session::monotonic();
    let status = call();
    if let Some((account, expected)) = left
        && let Some(rate) = account.rate()
    {
        let took = session::monotonic().saturating_sub(began);
        account.charge(took.saturating_sub(expected) as i64, rate);
    }
    status
}

/// `cuCtxDestroy` and `cuCtxDestroy_v2`
pub unsafe fn context_destroy(real: unsafe extern "C" fn(Handle) -> Status, context: Handle) -> Status {
    // SAFETY: the program's own argument.
    ending(context, || unsafe { memory::context::destroy(real, context) })
}

/// `cuDevicePrimaryCtxRelease` and `cuDevicePrimaryCtxReset`. The context may stay, if others hold it; its meter then starts anew.
pub unsafe fn primary_release(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the program's own argument.
    let call = || unsafe { memory::context::release_primary(real, device) };
    let context = if state::known().is_some() { memory::context::active_primary(device) } else { core::ptr::null_mut() };
    if context.is_null() { call() } else { ending(context, call) }
}
