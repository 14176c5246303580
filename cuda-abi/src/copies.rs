//! The structures that describe copies of rectangles, boxes and batches.

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
/// Asks the driver whether an address of unified addressing is device memory.
pub type IsDevice = fn(DevicePtr) -> bool;

/// One end of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug)]
pub struct End2d {
    pub at: [usize; 2],
    pub kind: i32,
    pub host: *const c_void,
    pub device: DevicePtr,
    pub array: Handle,
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Debug)]
pub struct Copy2d {
    pub from: End2d,
    pub to: End2d,
    pub width: usize,
    pub height: usize,
}

/// One end of a `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Debug)]
pub struct End3d {
    pub at: [usize; 4],
    pub kind: i32,
    pub host: *const c_void,
    pub device: DevicePtr,
    pub array: Handle,
    pub context: Handle,
    pub pitch: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D`, `CUDA_MEMCPY3D_PEER`
#[repr(C)]
#[derive(Debug)]
pub struct Copy3d {
    pub from: End3d,
    pub to: End3d,
    pub extent: [usize; 3],
}

/// `CUDA_MEMCPY2D_v1`, from before CUDA 4. The second end begins right behind the first one's last word.
#[repr(C)]
#[derive(Debug)]
pub struct Copy2dV1 {
    pub from_at: [u32; 2],
    pub from_kind: i32,
    pub from_host: *const c_void,
    pub from_device: u32,
    pub from_array: Handle,
    pub from_pitch: u32,
    pub to_at: [u32; 2],
    pub to_kind: i32,
    pub to_host: *const c_void,
    pub to_device: u32,
    pub to_array: Handle,
    pub to_pitch: u32,
    pub extent: [u32; 2],
}

/// `CUDA_MEMCPY3D_v1`
#[repr(C)]
#[derive(Debug)]
pub struct Copy3dV1 {
    pub from_at: [u32; 4],
    pub from_kind: i32,
    pub from_host: *const c_void,
    pub from_device: u32,
    pub from_array: Handle,
    pub from_reserved: *const c_void,
    pub from_pitch: [u32; 2],
    pub to_at: [u32; 4],
    pub to_kind: i32,
    pub to_host: *const c_void,
    pub to_device: u32,
    pub to_array: Handle,
    pub to_reserved: *const c_void,
    pub to_pitch: [u32; 2],
    pub extent: [u32; 3],
}

fn end_is_device(kind: i32, address: DevicePtr, is_device: IsDevice) -> bool {
    match kind {
        HOST => false,
        UNIFIED => is_device(address),
        _ => true,
    }
}

/// A copy that a structure describes.
pub trait Described {
    /// Whether both ends are device memory.
    fn is_within(&self, is_device: IsDevice) -> bool;
    /// In bytes.
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

/// `CUmemcpy3DOperand`, up to what is read: an array's handle lies where a pointer does.
#[repr(C)]
#[derive(Debug)]
pub struct Operand {
    pub kind: i32,
    pub pointer: DevicePtr,
    pub rest: [u64; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`
#[repr(C)]
#[derive(Debug)]
pub struct Operation {
    pub from: Operand,
    pub to: Operand,
    pub extent: [usize; 3],
    pub order: i32,
    pub flags: u32,
}

impl Operand {
    /// Whether it is device memory, by what its kind says or the driver.
    pub fn is_device(&self, is_device: IsDevice) -> bool {
        self.kind != OPERAND_POINTER || is_device(self.pointer)
    }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn only_copies_with_both_ends_in_the_device_are_within() {
        // SAFETY: numbers and null pointers only.
        let mut copy: Copy3d = unsafe { core::mem::zeroed() };
        copy.extent = [4, 5, 6];
        for (from, to, within) in [(DEVICE, DEVICE, true), (3, DEVICE, true), (HOST, DEVICE, false), (3, HOST, false), (HOST, HOST, false)]
        {
            (copy.from.kind, copy.to.kind) = (from, to);
            assert_eq!(
                (copy.is_within(|_| panic!("only unified addresses are asked about")), copy.bytes()),
                (within, 120),
                "{from} to {to}"
            );
        }
    }
}
