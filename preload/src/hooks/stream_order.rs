//! Work in a stream that is not computation: copies from and to the host, waits, host functions, prefetches of managed memory.

use crate::compute::pacing::interrupt;
use crate::hooks::host_moves;
use vgpu_cuda_abi::cuda::{DEVICE_CPU, DevicePtr, Handle, Location, Status, effective_stream};

/// Makes a call that puts work other than a launch into `stream`: time that the stream spends on it is not measured as a launch's.
#[inline]
pub fn interleave(call: impl FnOnce() -> Status, stream: Handle) -> Status {
    interrupt(stream);
    call()
}

/// `cuMemPrefetchAsync`. Managed memory moves over the bus, as copies from and to the host do.
pub unsafe fn prefetch<const PER_THREAD: bool>(
    real: unsafe extern "C" fn(DevicePtr, usize, i32, Handle) -> Status,
    address: DevicePtr,
    bytes: usize,
    to: i32,
    stream: Handle,
) -> Status {
    interrupt(effective_stream::<PER_THREAD>(stream));
    // SAFETY: the program's own arguments, or part of the range.
    host_moves::prefetch(address, bytes, |address, bytes, host| unsafe { real(address, bytes, if host { DEVICE_CPU } else { to }, stream) })
}

/// `cuMemPrefetchAsync_v2`
pub unsafe fn prefetch_v2<const PER_THREAD: bool>(
    real: unsafe extern "C" fn(DevicePtr, usize, Location, u32, Handle) -> Status,
    address: DevicePtr,
    bytes: usize,
    to: Location,
    flags: u32,
    stream: Handle,
) -> Status {
    interrupt(effective_stream::<PER_THREAD>(stream));
    // SAFETY: the program's own arguments, or part of the range.
    host_moves::prefetch(address, bytes, |address, bytes, host| unsafe {
        real(address, bytes, if host { host_moves::HOST } else { to }, flags, stream)
    })
}

/// The driver's function for batched prefetches.
type PrefetchBatch = unsafe extern "C" fn(*mut DevicePtr, *mut usize, usize, *mut Location, *mut usize, usize, u64, Handle) -> Status;

/// `cuMemPrefetchBatchAsync`, `cuMemDiscardAndPrefetchBatchAsync`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn prefetch_batch<const PER_THREAD: bool>(
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
    interrupt(effective_stream::<PER_THREAD>(stream));
    // SAFETY: the program's own arguments.
    let whole = || unsafe { real(addresses, sizes, count, locations, indices, location_count, flags, stream) };
    let batch = host_moves::Batch { addresses, sizes, count, locations, indices, location_count };
    // SAFETY: one range with one location.
    let one = |mut address, mut bytes, mut to| unsafe {
        let mut first = 0;
        real(&raw mut address, &raw mut bytes, 1, &raw mut to, &raw mut first, 1, flags, stream)
    };
    // SAFETY: the program's own lists, as long as the counts say.
    unsafe { host_moves::prefetch_batch(&batch, whole, one) }
}
