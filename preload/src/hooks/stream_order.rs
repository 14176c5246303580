//! What comes between launches and is no compute work: managed memory on the move, and waits.

use core::ffi::c_void;

use crate::compute::pacing::interrupt;
use crate::hooks::host_moves;
use vgpu_cuda_abi::cuda::{DEVICE_CPU, DevicePtr, Handle, Location, Status, meant};

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

/// `cuMemPrefetchAsync`: managed memory moves over the bus, as copies from and to the host do.
pub unsafe fn prefetch<const OWN: bool>(
    real: unsafe extern "C" fn(DevicePtr, usize, i32, Handle) -> Status,
    address: DevicePtr,
    bytes: usize,
    to: i32,
    stream: Handle,
) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments, or part of the range.
    host_moves::prefetch(address, bytes, |address, bytes, host| unsafe { real(address, bytes, if host { DEVICE_CPU } else { to }, stream) })
}

/// `cuMemPrefetchAsync_v2`
pub unsafe fn prefetch_v2<const OWN: bool>(
    real: unsafe extern "C" fn(DevicePtr, usize, Location, u32, Handle) -> Status,
    address: DevicePtr,
    bytes: usize,
    to: Location,
    flags: u32,
    stream: Handle,
) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments, or part of the range.
    host_moves::prefetch(address, bytes, |address, bytes, host| unsafe {
        real(address, bytes, if host { host_moves::HOST } else { to }, flags, stream)
    })
}

type PrefetchBatch = unsafe extern "C" fn(*mut DevicePtr, *mut usize, usize, *mut Location, *mut usize, usize, u64, Handle) -> Status;

/// `cuMemPrefetchBatchAsync`, `cuMemDiscardAndPrefetchBatchAsync`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn prefetch_batch<const OWN: bool>(
    real: PrefetchBatch,
    addresses: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    locations: *mut Location,
    indices: *mut usize,
    location_count: usize,
    flags: u64,
    stream: Handle,
) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    let whole = || unsafe { real(addresses, sizes, count, locations, indices, location_count, flags, stream) };
    let batch = host_moves::Batch { addresses, sizes, count, locations, indices, location_count };
    // SAFETY: one range of one location.
    let one = |mut address, mut bytes, mut to| unsafe {
        let mut first = 0;
        real(&raw mut address, &raw mut bytes, 1, &raw mut to, &raw mut first, 1, flags, stream)
    };
    // SAFETY: the program's own lists, as long as it says.
    unsafe { host_moves::prefetch_batch(&batch, whole, one) }
}

/// `cuStreamBatchMemOp`: it may wait for a value.
pub unsafe fn batch_values<const OWN: bool>(
    real: unsafe extern "C" fn(Handle, u32, *mut c_void, u32) -> Status,
    stream: Handle,
    count: u32,
    parameters: *mut c_void,
    flags: u32,
) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    unsafe { real(stream, count, parameters, flags) }
}

/// `cuWaitExternalSemaphoresAsync`
pub unsafe fn wait_semaphores<const OWN: bool>(
    real: unsafe extern "C" fn(*const Handle, *const c_void, u32, Handle) -> Status,
    semaphores: *const Handle,
    parameters: *const c_void,
    count: u32,
    stream: Handle,
) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    unsafe { real(semaphores, parameters, count, stream) }
}

/// `cuStreamAddCallback`: the stream waits for the host.
pub unsafe fn callback<const OWN: bool>(
    real: unsafe extern "C" fn(Handle, *mut c_void, *mut c_void, u32) -> Status,
    stream: Handle,
    function: *mut c_void,
    data: *mut c_void,
    flags: u32,
) -> Status {
    interrupt(meant::<OWN>(stream));
    // SAFETY: the program's own arguments.
    unsafe { real(stream, function, data, flags) }
}
