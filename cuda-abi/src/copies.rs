//! Structures that describe copies of rectangles, boxes and batches.

use core::ffi::c_void;

use crate::cuda::{DevicePtr, Handle};

/// `CU_MEMORYTYPE_HOST`
pub const HOST: i32 = 1;
/// `CU_MEMORYTYPE_UNIFIED`
pub const UNIFIED: i32 = 4;
/// `CU_MEMORYTYPE_DEVICE`
pub const DEVICE: i32 = 2;
/// `CU_MEMCPY_OPERAND_TYPE_POINTER`
pub const OPERAND_POINTER: i32 = 1;
/// Returns whether an address of unified addressing is device memory.
pub type IsDevice = fn(DevicePtr) -> bool;

/// Source or destination of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug)]
pub struct End2d {
    /// Offset in the memory: bytes of a row, rows.
    pub at: [usize; 2],
    /// `CUmemorytype`
    pub kind: i32,
    /// Address of host memory.
    pub host: *const c_void,
    /// Address of device or unified memory.
    pub device: DevicePtr,
    /// Handle of an array.
    pub array: Handle,
    /// Distance of rows in bytes.
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Debug)]
pub struct Copy2d {
    /// Source.
    pub from: End2d,
    /// Destination.
    pub to: End2d,
    /// Width in bytes.
    pub width: usize,
    /// Height in rows.
    pub height: usize,
}

/// Source or destination of a `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Debug)]
pub struct End3d {
    /// Offset in the memory: bytes of a row, rows, slices, mipmap level.
    pub at: [usize; 4],
    /// `CUmemorytype`
    pub kind: i32,
    /// Address of host memory.
    pub host: *const c_void,
    /// Address of device or unified memory.
    pub device: DevicePtr,
    /// Handle of an array.
    pub array: Handle,
    /// Context of the memory; reserved in `CUDA_MEMCPY3D`.
    pub context: Handle,
    /// Distance of rows in bytes.
    pub pitch: usize,
    /// Distance of slices in rows.
    pub height: usize,
}

/// `CUDA_MEMCPY3D`, `CUDA_MEMCPY3D_PEER`
#[repr(C)]
#[derive(Debug)]
pub struct Copy3d {
    /// Source.
    pub from: End3d,
    /// Destination.
    pub to: End3d,
    /// Width in bytes, height in rows, depth in slices.
    pub extent: [usize; 3],
}

/// `CUDA_MEMCPY2D_v1`, from before CUDA 4. The destination begins right behind the source's pitch, without padding.
#[repr(C)]
#[derive(Debug)]
pub struct Copy2dV1 {
    /// Source: offset in the memory (bytes of a row, rows).
    pub from_at: [u32; 2],
    /// Source: `CUmemorytype`.
    pub from_kind: i32,
    /// Source: address of host memory.
    pub from_host: *const c_void,
    /// Source: address of device or unified memory.
    pub from_device: u32,
    /// Source: handle of an array.
    pub from_array: Handle,
    /// Source: distance of rows in bytes.
    pub from_pitch: u32,
    /// Destination: offset in the memory (bytes of a row, rows).
    pub to_at: [u32; 2],
    /// Destination: `CUmemorytype`.
    pub to_kind: i32,
    /// Destination: address of host memory.
    pub to_host: *const c_void,
    /// Destination: address of device or unified memory.
    pub to_device: u32,
    /// Destination: handle of an array.
    pub to_array: Handle,
    /// Destination: distance of rows in bytes.
    pub to_pitch: u32,
    /// Width in bytes, height in rows.
    pub extent: [u32; 2],
}

/// `CUDA_MEMCPY3D_v1`
#[repr(C)]
#[derive(Debug)]
pub struct Copy3dV1 {
    /// Source: offset in the memory (bytes of a row, rows, slices, mipmap level).
    pub from_at: [u32; 4],
    /// Source: `CUmemorytype`.
    pub from_kind: i32,
    /// Source: address of host memory.
    pub from_host: *const c_void,
    /// Source: address of device or unified memory.
    pub from_device: u32,
    /// Source: handle of an array.
    pub from_array: Handle,
    /// Source: reserved.
    pub from_reserved: *const c_void,
    /// Source: distance of rows in bytes, of slices in rows.
    pub from_pitch: [u32; 2],
    /// Destination: offset in the memory (bytes of a row, rows, slices, mipmap level).
    pub to_at: [u32; 4],
    /// Destination: `CUmemorytype`.
    pub to_kind: i32,
    /// Destination: address of host memory.
    pub to_host: *const c_void,
    /// Destination: address of device or unified memory.
    pub to_device: u32,
    /// Destination: handle of an array.
    pub to_array: Handle,
    /// Destination: reserved.
    pub to_reserved: *const c_void,
    /// Destination: distance of rows in bytes, of slices in rows.
    pub to_pitch: [u32; 2],
    /// Width in bytes, height in rows, depth in slices.
    pub extent: [u32; 3],
}

/// Returns whether one end of a copy is device memory.
fn end_is_device(kind: i32, address: DevicePtr, is_device: IsDevice) -> bool {
    match kind {
        HOST => false,
        UNIFIED => is_device(address),
        _ => true,
    }
}

/// Copy that a structure describes.
pub trait Described {
    /// Returns whether both ends are device memory.
    fn is_within(&self, is_device: IsDevice) -> bool;
    /// Returns the size of the copy in bytes.
    fn bytes(&self) -> usize;
}

impl Described for Copy2d {
    fn is_within(&self, is_device: IsDevice) -> bool {
        end_is_device(self.from.kind, self.from.device, is_device) && end_is_device(self.to.kind, self.to.device, is_device)
    }

    fn bytes(&self) -> usize {
        self.width.saturating_mul(self.height)
    }
}

impl Described for Copy3d {
    fn is_within(&self, is_device: IsDevice) -> bool {
        end_is_device(self.from.kind, self.from.device, is_device) && end_is_device(self.to.kind, self.to.device, is_device)
    }

    fn bytes(&self) -> usize {
        self.extent.iter().fold(1, |product: usize, extent| product.saturating_mul(*extent))
    }
}

/// Implements [`Described`] for structures from before CUDA 4.
macro_rules! described_v1 {
    ($($type:ty),+) => {$(
        impl Described for $type {
            fn is_within(&self, is_device: IsDevice) -> bool {
                end_is_device(self.from_kind, self.from_device.into(), is_device) && end_is_device(self.to_kind, self.to_device.into(), is_device)
            }

            fn bytes(&self) -> usize {
                self.extent.iter().fold(1, |product: usize, &extent| product.saturating_mul(extent as usize))
            }
        }
    )+};
}
described_v1!(Copy2dV1, Copy3dV1);

/// `CUmemcpy3DOperand`, up to the last field that is read. A pointer and an array's handle are at the same place.
#[repr(C)]
#[derive(Debug)]
pub struct Operand {
    /// `CUmemcpy3DOperandType`
    pub kind: i32,
    /// Address, for [`OPERAND_POINTER`].
    pub pointer: DevicePtr,
    /// Remaining fields.
    pub rest: [u64; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`
#[repr(C)]
#[derive(Debug)]
pub struct Operation {
    /// Source.
    pub from: Operand,
    /// Destination.
    pub to: Operand,
    /// Width, height and depth in elements.
    pub extent: [usize; 3],
    /// `srcAccessOrder`
    pub order: i32,
    /// `flags`
    pub flags: u32,
}

impl Operand {
    /// Returns whether the operand is device memory.
    fn is_device(&self, is_device: IsDevice) -> bool {
        self.kind != OPERAND_POINTER || is_device(self.pointer)
    }
}

impl Described for Operation {
    fn is_within(&self, is_device: IsDevice) -> bool {
        self.to.is_device(is_device) && self.from.is_device(is_device)
    }

    fn bytes(&self) -> usize {
        self.extent.iter().fold(1, |product: usize, extent| product.saturating_mul(*extent))
    }
}

/// `CUfabricCpyOperand`, up to the last field that is read
#[repr(C)]
#[derive(Debug)]
pub struct FabricOperand {
    /// `CUfabricCpyOperandType`
    pub kind: i32,
    /// Address, for [`OPERAND_POINTER`]; else the number of a logical endpoint.
    pub pointer: DevicePtr,
    /// Remaining field.
    pub rest: u64,
}

/// `CUDA_FABRIC_COPY_BATCH_OP` (CUDA 13.5)
#[repr(C)]
#[derive(Debug)]
pub struct FabricOperation {
    /// Source.
    pub from: FabricOperand,
    /// Destination.
    pub to: FabricOperand,
    /// Size in bytes.
    pub bytes: usize,
    /// `flags`
    pub flags: u32,
}

impl Described for FabricOperation {
    /// Memory behind a logical endpoint is device memory.
    fn is_within(&self, is_device: IsDevice) -> bool {
        [&self.from, &self.to].iter().all(|end| end.kind != OPERAND_POINTER || is_device(end.pointer))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn structures_match_cuda() {
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
    }

    #[test]
    fn fabric_copies_are_as_cuda_13_5_declares_them() {
        // The size and the offsets that a C compiler gives for cuda.h of CUDA 13.5, which the crate cudarc does not have.
        assert_eq!((size_of::<FabricOperand>(), size_of::<FabricOperation>()), (24, 64));
        assert_eq!([offset_of!(FabricOperand, pointer), offset_of!(FabricOperation, to), offset_of!(FabricOperation, bytes)], [8, 24, 48]);
        // SAFETY: numbers only.
        let mut copy: FabricOperation = unsafe { core::mem::zeroed() };
        (copy.from.kind, copy.from.pointer, copy.to.kind, copy.to.pointer, copy.bytes) = (OPERAND_POINTER, 8, 2, 16, 32);
        assert!(copy.is_within(|address| address == 8) && !copy.is_within(|address| address == 16) && copy.bytes() == 32);
    }

    #[test]
    fn only_copies_with_both_ends_in_the_device_are_within() {
        // SAFETY: numbers and null pointers only.
        let mut copy: Copy3d = unsafe { core::mem::zeroed() };
        copy.extent = [4, 5, 6];
        for (from, to, within) in [(DEVICE, DEVICE, true), (3, DEVICE, true), (HOST, DEVICE, false), (3, HOST, false), (HOST, HOST, false)]
        {
            (copy.from.kind, copy.to.kind) = (from, to);
            assert_eq!((copy.is_within(|_| panic!("only unified addresses are looked up")), copy.bytes()), (within, 120), "{from} to {to}");
        }
    }
}
