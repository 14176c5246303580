//! Copies that a structure or a list describes: rectangles, boxes, batches.

use core::ffi::c_void;

use crate::hooks::copy::{DEFAULT, copy, is_device};
use vgpu_cuda_abi::copies::{Described, Operation};
use vgpu_cuda_abi::cuda::{DevicePtr, Handle, Status};

/// `cuMemcpy2D_v2`, `cuMemcpy2DUnaligned_v2`, `cuMemcpy3D_v2`, `cuMemcpy3DPeer`
pub unsafe fn described<const OWN: bool, T: Described>(real: unsafe extern "C" fn(*const T) -> Status, what: *const T) -> Status {
    // SAFETY: the program's own argument: null or a whole structure.
    unsafe {
        let known = what.as_ref();
        copy::<OWN>(DEFAULT, || known.is_some_and(|copy| copy.is_within(is_device)), || known.map_or(0, T::bytes), || real(what))
    }
}

/// `cuMemcpy2DAsync_v2`, `cuMemcpy3DAsync_v2`, `cuMemcpy3DPeerAsync`
pub unsafe fn described_async<const OWN: bool, T: Described>(
    real: unsafe extern "C" fn(*const T, Handle) -> Status,
    what: *const T,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments: null or a whole structure.
    unsafe {
        let known = what.as_ref();
        copy::<OWN>(stream, || known.is_some_and(|copy| copy.is_within(is_device)), || known.map_or(0, T::bytes), || real(what, stream))
    }
}

/// As many of a batch's copies are looked at to tell whether it is within the device.
const LOOKED_AT: usize = 64;

/// Null or a whole list.
unsafe fn list<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { core::slice::from_raw_parts(start, count) }
    }
}

/// A batch within the device, if one of its copies is.
unsafe fn batch<const OWN: bool>(
    (to, from, sizes): (*const DevicePtr, *const DevicePtr, *const usize),
    count: usize,
    stream: Handle,
    call: impl FnOnce() -> Status,
) -> Status {
    // SAFETY: lists of that many entries, which the driver is about to read.
    let (to, from, sizes) = unsafe { (list(to, count), list(from, count), list(sizes, count)) };
    let within = || to.iter().zip(from).take(LOOKED_AT).any(|(to, from)| is_device(*to) && is_device(*from));
    copy::<OWN>(stream, within, || sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size)), call)
}

type Batch = unsafe extern "C" fn(*mut DevicePtr, *mut DevicePtr, *mut usize, usize, *mut c_void, *mut usize, usize, Handle) -> Status;

type BatchV1 =
    unsafe extern "C" fn(*mut DevicePtr, *mut DevicePtr, *mut usize, usize, *mut c_void, *mut usize, usize, *mut usize, Handle) -> Status;

/// `cuMemcpyBatchAsync_v2`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn batch_v2<const OWN: bool>(
    real: Batch,
    to: *mut DevicePtr,
    from: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    indices: *mut usize,
    attribute_count: usize,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { batch::<OWN>((to, from, sizes), count, stream, || real(to, from, sizes, count, attributes, indices, attribute_count, stream)) }
}

/// `cuMemcpyBatchAsync`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn batch_v1<const OWN: bool>(
    real: BatchV1,
    to: *mut DevicePtr,
    from: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    indices: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe {
        batch::<OWN>((to, from, sizes), count, stream, || {
            real(to, from, sizes, count, attributes, indices, attribute_count, failed, stream)
        })
    }
}

unsafe fn operations<const OWN: bool>(start: *const Operation, count: usize, stream: Handle, call: impl FnOnce() -> Status) -> Status {
    // SAFETY: a list of that many entries, which the driver is about to read.
    let known = unsafe { list(start, count) };
    let volume = |operation: &Operation| operation.extent.iter().fold(1, |product: usize, extent| product.saturating_mul(*extent));
    let within = || known.iter().take(LOOKED_AT).any(|operation| operation.to.is_device(is_device) && operation.from.is_device(is_device));
    copy::<OWN>(stream, within, || known.iter().fold(0, |sum: usize, operation| sum.saturating_add(volume(operation))), call)
}

/// `cuMemcpy3DBatchAsync_v2`
pub unsafe fn batch_3d_v2<const OWN: bool>(
    real: unsafe extern "C" fn(usize, *mut Operation, u64, Handle) -> Status,
    count: usize,
    start: *mut Operation,
    flags: u64,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { operations::<OWN>(start, count, stream, || real(count, start, flags, stream)) }
}

/// `cuMemcpy3DBatchAsync`
pub unsafe fn batch_3d_v1<const OWN: bool>(
    real: unsafe extern "C" fn(usize, *mut Operation, *mut usize, u64, Handle) -> Status,
    count: usize,
    start: *mut Operation,
    failed: *mut usize,
    flags: u64,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { operations::<OWN>(start, count, stream, || real(count, start, failed, flags, stream)) }
}
