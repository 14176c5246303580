//! Copies and fills of every shape. Within the device they take its memory's bandwidth and are measured like launches; from and to
//! the host they run beside the kernels of others, and only come between launches.
//!
//! `OWN` is true for the forms with `_ptsz` or `_ptds`, which mean the thread's own default stream by 0. The forms without a stream go
//! through the default stream.

use core::ffi::c_void;

use crate::compute::pacing::{around, interrupt, memory_key};
use crate::compute::streams;
use crate::loader::driver;
use vgpu_cuda_abi::cuda::{DevicePtr, Handle, SUCCESS, Status, meant};

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

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`
pub(super) const POINTER_MEMORY_TYPE: i32 = 2;
/// `CU_MEMORYTYPE_DEVICE`; managed memory answers so too.
pub(super) const DEVICE: i32 = 2;
pub(super) const DEFAULT: Handle = core::ptr::null_mut();
/// What [`memory_key`] takes for a copy and for a fill.
const COPY: u64 = 2;
const FILL: u64 = 3;
const DECOMPRESS: u64 = 4;

/// Whether an address is device memory; asked only where a compute limit makes it matter.
pub(super) fn is_device(address: DevicePtr) -> bool {
    let mut kind = 0i32;
    // SAFETY: the driver writes one integer, or fails for an address that it does not know: the host's.
    unsafe { driver::pointer_attribute((&raw mut kind).cast(), POINTER_MEMORY_TYPE, address) == SUCCESS && kind == DEVICE }
}

/// Makes a copy whose ends are both in the device, or not.
#[inline]
pub(super) fn copy<const OWN: bool>(
    stream: Handle,
    within: impl FnOnce() -> bool,
    bytes: impl FnOnce() -> usize,
    call: impl FnOnce() -> Status,
) -> Status {
    let stream = meant::<OWN>(stream);
    match streams::limited() {
        Ok(None) => call(),
        // It is refused if it cannot be measured.
        _ if within() => around(stream, || memory_key(COPY, bytes()), call),
        _ => {
            interrupt(stream);
            call()
        }
    }
}

type Plain = unsafe extern "C" fn(u64, u64, usize) -> Status;
type PlainAsync = unsafe extern "C" fn(u64, u64, usize, Handle) -> Status;

/// `cuMemcpyDtoD_v2`
pub unsafe fn device<const OWN: bool>(real: Plain, to: u64, from: u64, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(DEFAULT, || true, || bytes, || unsafe { real(to, from, bytes) })
}

/// `cuMemcpyHtoD_v2`, `cuMemcpyDtoH_v2`
pub unsafe fn host<const OWN: bool>(real: Plain, to: u64, from: u64, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(DEFAULT, || false, || bytes, || unsafe { real(to, from, bytes) })
}

/// `cuMemcpy`: the addresses say where they are.
pub unsafe fn unified<const OWN: bool>(real: Plain, to: u64, from: u64, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(DEFAULT, || is_device(to) && is_device(from), || bytes, || unsafe { real(to, from, bytes) })
}

/// `cuMemcpyAsync`
pub unsafe fn unified_async<const OWN: bool>(real: PlainAsync, to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(stream, || is_device(to) && is_device(from), || bytes, || unsafe { real(to, from, bytes, stream) })
}

type Peer = unsafe extern "C" fn(u64, Handle, u64, Handle, usize) -> Status;
type PeerAsync = unsafe extern "C" fn(u64, Handle, u64, Handle, usize, Handle) -> Status;

/// `cuMemcpyPeer`
pub unsafe fn peer<const OWN: bool>(real: Peer, to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(DEFAULT, || true, || bytes, || unsafe { real(to, to_context, from, from_context, bytes) })
}

/// `cuMemcpyPeerAsync`
pub unsafe fn peer_async<const OWN: bool>(
    real: PeerAsync,
    to: u64,
    to_context: Handle,
    from: u64,
    from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(stream, || true, || bytes, || unsafe { real(to, to_context, from, from_context, bytes, stream) })
}

type Offset = unsafe extern "C" fn(u64, u64, u64, usize) -> Status;
type OffsetAsync = unsafe extern "C" fn(u64, u64, u64, usize, Handle) -> Status;

/// `cuMemcpyAtoA_v2`
pub unsafe fn array_to_array<const OWN: bool>(
    real: unsafe extern "C" fn(Handle, usize, Handle, usize, usize) -> Status,
    to: Handle,
    to_offset: usize,
    from: Handle,
    from_offset: usize,
    bytes: usize,
) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(DEFAULT, || true, || bytes, || unsafe { real(to, to_offset, from, from_offset, bytes) })
}

/// `cuMemcpyAtoD_v2`, `cuMemcpyDtoA_v2`: an array, an offset in it and an address, in the order in which they came.
pub unsafe fn array<const OWN: bool>(real: Offset, first: u64, second: u64, third: u64, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(DEFAULT, || true, || bytes, || unsafe { real(first, second, third, bytes) })
}

/// `cuMemcpyAtoH_v2`, `cuMemcpyHtoA_v2`
pub unsafe fn array_host<const OWN: bool>(real: Offset, first: u64, second: u64, third: u64, bytes: usize) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(DEFAULT, || false, || bytes, || unsafe { real(first, second, third, bytes) })
}

/// `cuMemcpyAtoHAsync_v2`, `cuMemcpyHtoAAsync_v2`
pub unsafe fn array_host_async<const OWN: bool>(
    real: OffsetAsync,
    first: u64,
    second: u64,
    third: u64,
    bytes: usize,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    copy::<OWN>(stream, || false, || bytes, || unsafe { real(first, second, third, bytes, stream) })
}

/// `cuMemsetD8_v2`, `cuMemsetD16_v2`, `cuMemsetD32_v2`: the value is passed on as it came.
pub unsafe fn fill<const OWN: bool>(
    real: unsafe extern "C" fn(DevicePtr, u32, usize) -> Status,
    address: DevicePtr,
    value: u32,
    count: usize,
) -> Status {
    // SAFETY: the program's own arguments.
    around(meant::<OWN>(DEFAULT), || memory_key(FILL, count), || unsafe { real(address, value, count) })
}

/// `cuMemsetD2D8_v2`, `cuMemsetD2D16_v2`, `cuMemsetD2D32_v2`
pub unsafe fn fill_2d<const OWN: bool>(
    real: unsafe extern "C" fn(DevicePtr, usize, u32, usize, usize) -> Status,
    address: DevicePtr,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
) -> Status {
    let call = || {
        // SAFETY: the program's own arguments.
        unsafe { real(address, pitch, value, width, height) }
    };
    around(meant::<OWN>(DEFAULT), || memory_key(FILL, width.saturating_mul(height)), call)
}

/// `cuMemsetD2D8Async`, `cuMemsetD2D16Async`, `cuMemsetD2D32Async`
pub unsafe fn fill_2d_async<const OWN: bool>(
    real: unsafe extern "C" fn(DevicePtr, usize, u32, usize, usize, Handle) -> Status,
    address: DevicePtr,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: Handle,
) -> Status {
    let call = || {
        // SAFETY: the program's own arguments.
        unsafe { real(address, pitch, value, width, height, stream) }
    };
    around(meant::<OWN>(stream), || memory_key(FILL, width.saturating_mul(height)), call)
}

/// `cuMemBatchDecompressAsync`
pub unsafe fn decompress<const OWN: bool>(
    real: unsafe extern "C" fn(*mut c_void, usize, u32, *mut usize, Handle) -> Status,
    parameters: *mut c_void,
    count: usize,
    flags: u32,
    failed: *mut usize,
    stream: Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    around(meant::<OWN>(stream), || memory_key(DECOMPRESS, count), || unsafe { real(parameters, count, flags, failed, stream) })
}
