//! Copies that a structure or a list describes: rectangles, boxes, batches.

use core::ffi::c_void;

use super::copies::{DEFAULT, copy, is_device};
use crate::cuda::{DevicePtr, Handle, Status};

/// `CU_MEMORYTYPE_HOST`
const HOST: i32 = 1;
/// `CU_MEMORYTYPE_UNIFIED`
const UNIFIED: i32 = 4;
/// `CU_MEMCPY_OPERAND_TYPE_POINTER`
const OPERAND_POINTER: i32 = 1;

/// One end of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug)]
pub struct End2d {
    at: [usize; 2],
    kind: i32,
    host: *const c_void,
    device: DevicePtr,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Debug)]
pub struct Copy2d {
    from: End2d,
    to: End2d,
    width: usize,
    height: usize,
}

/// One end of a `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Debug)]
pub struct End3d {
    at: [usize; 4],
    kind: i32,
    host: *const c_void,
    device: DevicePtr,
    array: Handle,
    context: Handle,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`, `CUDA_MEMCPY3D_PEER`
#[repr(C)]
#[derive(Debug)]
pub struct Copy3d {
    from: End3d,
    to: End3d,
    extent: [usize; 3],
}

/// `CUDA_MEMCPY2D_v1`, from before CUDA 4. The second end begins right behind the first one's last word.
#[repr(C)]
#[derive(Debug)]
pub struct Copy2dV1 {
    from_at: [u32; 2],
    from_kind: i32,
    from_host: *const c_void,
    from_device: u32,
    from_array: Handle,
    from_pitch: u32,
    to_at: [u32; 2],
    to_kind: i32,
    to_host: *const c_void,
    to_device: u32,
    to_array: Handle,
    to_pitch: u32,
    extent: [u32; 2],
}

/// `CUDA_MEMCPY3D_v1`
#[repr(C)]
#[derive(Debug)]
pub struct Copy3dV1 {
    from_at: [u32; 4],
    from_kind: i32,
    from_host: *const c_void,
    from_device: u32,
    from_array: Handle,
    from_reserved: *const c_void,
    from_pitch: [u32; 2],
    to_at: [u32; 4],
    to_kind: i32,
    to_host: *const c_void,
    to_device: u32,
    to_array: Handle,
    to_reserved: *const c_void,
    to_pitch: [u32; 2],
    extent: [u32; 3],
}

fn end_is_device(kind: i32, address: DevicePtr) -> bool {
    match kind {
        HOST => false,
        UNIFIED => is_device(address),
        _ => true,
    }
}

/// A copy that a structure describes.
pub trait Described {
    /// Whether both ends are device memory.
    fn is_within(&self) -> bool;
    /// In bytes.
    fn bytes(&self) -> usize;
}

impl Described for Copy2d {
    fn is_within(&self) -> bool {
        end_is_device(self.from.kind, self.from.device) && end_is_device(self.to.kind, self.to.device)
    }

    fn bytes(&self) -> usize {
        self.width.saturating_mul(self.height)
    }
}

impl Described for Copy3d {
    fn is_within(&self) -> bool {
        end_is_device(self.from.kind, self.from.device) && end_is_device(self.to.kind, self.to.device)
    }

    fn bytes(&self) -> usize {
        self.extent.iter().fold(1, |product: usize, extent| product.saturating_mul(*extent))
    }
}

macro_rules! described_v1 {
    ($($type:ty),+) => {$(
        impl Described for $type {
            fn is_within(&self) -> bool {
                end_is_device(self.from_kind, self.from_device.into()) && end_is_device(self.to_kind, self.to_device.into())
            }

            fn bytes(&self) -> usize {
                self.extent.iter().fold(1, |product: usize, &extent| product.saturating_mul(extent as usize))
            }
        }
    )+};
}
described_v1!(Copy2dV1, Copy3dV1);

/// `cuMemcpy2D_v2`, `cuMemcpy2DUnaligned_v2`, `cuMemcpy3D_v2`, `cuMemcpy3DPeer`
pub unsafe fn described<const OWN: bool, T: Described>(real: unsafe extern "C" fn(*const T) -> Status, what: *const T) -> Status {
    // SAFETY: the program's own argument: null or a whole structure.
    unsafe {
        let known = what.as_ref();
        copy::<OWN>(DEFAULT, || known.is_some_and(T::is_within), || known.map_or(0, T::bytes), || real(what))
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
        copy::<OWN>(stream, || known.is_some_and(T::is_within), || known.map_or(0, T::bytes), || real(what, stream))
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

/// `CUmemcpy3DOperand`, up to what is read: an array's handle lies where a pointer does.
#[repr(C)]
#[derive(Debug)]
pub struct Operand {
    kind: i32,
    pointer: DevicePtr,
    rest: [u64; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`
#[repr(C)]
#[derive(Debug)]
pub struct Operation {
    from: Operand,
    to: Operand,
    extent: [usize; 3],
    order: i32,
    flags: u32,
}

impl Operand {
    fn is_device(&self) -> bool {
        self.kind != OPERAND_POINTER || is_device(self.pointer)
    }
}

unsafe fn operations<const OWN: bool>(start: *const Operation, count: usize, stream: Handle, call: impl FnOnce() -> Status) -> Status {
    // SAFETY: a list of that many entries, which the driver is about to read.
    let known = unsafe { list(start, count) };
    let volume = |operation: &Operation| operation.extent.iter().fold(1, |product: usize, extent| product.saturating_mul(*extent));
    let within = || known.iter().take(LOOKED_AT).any(|operation| operation.to.is_device() && operation.from.is_device());
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

#[cfg(test)]
mod tests {
    use super::super::copies::{DEVICE, POINTER_MEMORY_TYPE};
    use super::*;
    use core::mem::{offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn structures_are_cudas() {
        assert_eq!(size_of::<Copy2d>(), size_of::<sys::CUDA_MEMCPY2D>());
        assert_eq!(offset_of!(Copy2d, from.kind), offset_of!(sys::CUDA_MEMCPY2D, srcMemoryType));
        assert_eq!(offset_of!(Copy2d, to.device), offset_of!(sys::CUDA_MEMCPY2D, dstDevice));
        assert_eq!(offset_of!(Copy2d, width), offset_of!(sys::CUDA_MEMCPY2D, WidthInBytes));
        assert_eq!(size_of::<Copy3d>(), size_of::<sys::CUDA_MEMCPY3D>());
        assert_eq!(size_of::<Copy3d>(), size_of::<sys::CUDA_MEMCPY3D_PEER>());
        assert_eq!(offset_of!(Copy3d, from.device), offset_of!(sys::CUDA_MEMCPY3D, srcDevice));
        assert_eq!(offset_of!(Copy3d, to.kind), offset_of!(sys::CUDA_MEMCPY3D, dstMemoryType));
        assert_eq!(offset_of!(Copy3d, to.device), offset_of!(sys::CUDA_MEMCPY3D_PEER, dstDevice));
        assert_eq!(offset_of!(Copy3d, extent), offset_of!(sys::CUDA_MEMCPY3D, WidthInBytes));
        assert_eq!(size_of::<Operation>(), size_of::<sys::CUDA_MEMCPY3D_BATCH_OP>());
        assert_eq!(offset_of!(Operation, to), offset_of!(sys::CUDA_MEMCPY3D_BATCH_OP, dst));
        assert_eq!(offset_of!(Operation, extent), offset_of!(sys::CUDA_MEMCPY3D_BATCH_OP, extent));
        assert_eq!(offset_of!(Operand, pointer), offset_of!(sys::CUmemcpy3DOperand, op));
        assert_eq!(OPERAND_POINTER, sys::CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER as i32);
        let kinds = [HOST, DEVICE, UNIFIED];
        use sys::CUmemorytype as T;
        assert_eq!(kinds, [T::CU_MEMORYTYPE_HOST, T::CU_MEMORYTYPE_DEVICE, T::CU_MEMORYTYPE_UNIFIED].map(|kind| kind as i32));
        assert_eq!(POINTER_MEMORY_TYPE, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as i32);
    }

    #[test]
    fn only_copies_with_both_ends_in_the_device_are_within() {
        // SAFETY: numbers and null pointers only.
        let mut copy: Copy3d = unsafe { core::mem::zeroed() };
        copy.extent = [4, 5, 6];
        for (from, to, within) in [(DEVICE, DEVICE, true), (3, DEVICE, true), (HOST, DEVICE, false), (3, HOST, false), (HOST, HOST, false)]
        {
            (copy.from.kind, copy.to.kind) = (from, to);
            assert_eq!((copy.is_within(), copy.bytes()), (within, 120), "{from} to {to}");
        }
    }
}
