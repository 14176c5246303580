//! Copies and fills. Within the device they take memory bandwidth and are measured like launches. From and to the host they run alongside
//! kernels, and only interleave with launches ([`crate::hooks::stream_order`]).
//!
//! Forms without a stream use the default stream.

use crate::compute::pacing::{around, interrupt, memory_key};
use crate::compute::streams;
use crate::loader::driver;
use vgpu_cuda_abi::copies::Described;
use vgpu_cuda_abi::cuda::{DevicePtr, Handle, MEMORY_TYPE_DEVICE, POINTER_MEMORY_TYPE, SUCCESS, Status};

/// Kinds of memory operations for the cost model ([`memory_key`]).
const COPY: u64 = 2;
/// See [`COPY`].
const FILL: u64 = 3;
/// See [`COPY`].
const DECOMPRESS: u64 = 4;
/// Number of copies of a batch that are examined to tell whether the batch is within the device.
const EXAMINED: usize = 64;

/// Makes a copy whose both ends are device memory.
#[inline]
pub fn within_device(call: impl FnOnce() -> Status, stream: Handle, bytes: usize) -> Status {
    around(stream, || memory_key(COPY, bytes), call)
}

/// Fills `elements` elements of device memory.
#[inline]
pub fn fill(call: impl FnOnce() -> Status, stream: Handle, elements: usize) -> Status {
    around(stream, || memory_key(FILL, elements), call)
}

/// Decompresses `count` buffers.
pub fn decompress(call: impl FnOnce() -> Status, stream: Handle, count: usize) -> Status {
    around(stream, || memory_key(DECOMPRESS, count), call)
}

/// Returns whether an address is device memory; managed memory counts as such. Called only under a compute limit.
fn is_device(address: DevicePtr) -> bool {
    let mut kind = 0i32;
    // SAFETY: the driver writes one integer, or fails for an address that it does not know, which is the host's.
    unsafe { driver::pointer_attribute((&raw mut kind).cast(), POINTER_MEMORY_TYPE, address) == SUCCESS && kind == MEMORY_TYPE_DEVICE }
}

/// Makes a copy that is within the device if `is_within` returns true. Without a compute limit neither closure is called.
#[inline]
fn copy(call: impl FnOnce() -> Status, stream: Handle, is_within: impl FnOnce() -> bool, bytes: impl FnOnce() -> usize) -> Status {
    match streams::limited() {
        Ok(None) => call(),
        // Also refuses a copy that could not be measured.
        _ if is_within() => around(stream, || memory_key(COPY, bytes()), call),
        _ => {
            interrupt(stream);
            call()
        }
    }
}

/// Makes a copy between two addresses of unified addressing.
pub fn by_address(call: impl FnOnce() -> Status, stream: Handle, to: u64, from: u64, bytes: usize) -> Status {
    copy(call, stream, || is_device(to) && is_device(from), || bytes)
}

/// Makes a copy of a rectangle or a box.
pub unsafe fn described<T: Described>(call: impl FnOnce() -> Status, stream: Handle, what: *const T) -> Status {
    // SAFETY: the caller's promise.
    let what = unsafe { what.as_ref() };
    copy(call, stream, || what.is_some_and(|copy| copy.is_within(is_device)), || what.map_or(0, T::bytes))
}

/// Returns a list as a slice; null is empty.
///
/// # Safety
/// `start` is null or has `count` entries.
unsafe fn list<'a, T>(start: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if start.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(start, count) } }
}

/// Makes a batch of copies. The batch counts as within the device if one of its copies is.
pub unsafe fn batch(
    call: impl FnOnce() -> Status,
    stream: Handle,
    to: *const DevicePtr,
    from: *const DevicePtr,
    sizes: *const usize,
    count: usize,
) -> Status {
    // SAFETY: the caller's promise.
    let (to, from, sizes) = unsafe { (list(to, count), list(from, count), list(sizes, count)) };
    let is_within = || to.iter().zip(from).take(EXAMINED).any(|(to, from)| is_device(*to) && is_device(*from));
    copy(call, stream, is_within, || sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)))
}

/// Makes a batch of copies of boxes; as [`batch`].
pub unsafe fn batch_3d<T: Described>(call: impl FnOnce() -> Status, stream: Handle, operations: *const T, count: usize) -> Status {
    // SAFETY: the caller's promise.
    let operations = unsafe { list(operations, count) };
    let is_within = || operations.iter().take(EXAMINED).any(|operation| operation.is_within(is_device));
    copy(call, stream, is_within, || operations.iter().fold(0, |sum: usize, operation| sum.saturating_add(operation.bytes())))
}
