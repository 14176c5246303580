//! Structures that single functions take.

use core::ffi::c_void;

/// `CUDA_ARRAY_DESCRIPTOR_v1`
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor {
    /// Width in elements.
    pub width: u32,
    /// Height in elements; 0 for one dimension.
    pub height: u32,
    /// `CUarray_format`
    pub format: u32,
    /// Number of channels of an element.
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor3d {
    /// Width in elements.
    pub width: u32,
    /// Height in elements; 0 for one dimension.
    pub height: u32,
    /// Depth in elements, or number of layers.
    pub depth: u32,
    /// `CUarray_format`
    pub format: u32,
    /// Number of channels of an element.
    pub channels: u32,
    /// Bits of `CUDA_ARRAY3D_*`.
    pub flags: u32,
}

/// `CU_MEM_OPERATION_TYPE_MAP`
pub const MAP: i32 = 1;

/// `CUarrayMapInfo`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MapInfo {
    /// `resourceType`: array or mipmapped array.
    pub resource_kind: i32,
    /// Handle of the array or mipmapped array.
    pub resource: u64,
    /// `subresourceType`
    pub subresource_kind: i32,
    /// `subresource`: level, layer, offset and extent.
    pub subresource: [u64; 4],
    /// `memOperationType`: [`MAP`] or unmap.
    pub operation: i32,
    /// `memHandleType`
    pub handle_kind: i32,
    /// Handle of the physical memory.
    pub handle: u64,
    /// Offset in the physical memory, in bytes.
    pub offset: u64,
    /// `deviceBitMask`, `flags`, `reserved`
    pub rest: [u32; 4],
}

/// `CUipcMemHandle`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle(pub [u64; 8]);

/// `CUcheckpointRestoreArgs`, up to the last field that is read. Before CUDA 13 the fields are zero.
#[repr(C)]
#[derive(Debug)]
pub struct RestoreArgs {
    /// `gpuPairs`: GPUs to restore to, by GPU that was checkpointed.
    pub pairs: *const c_void,
    /// Number of pairs.
    pub pair_count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn layouts_match_cuda() {
        assert_eq!(size_of::<IpcHandle>(), size_of::<sys::CUipcMemHandle>());
        assert_eq!(offset_of!(RestoreArgs, pair_count), offset_of!(sys::CUcheckpointRestoreArgs, gpuPairsCount));
        assert_eq!(size_of::<MapInfo>(), size_of::<sys::CUarrayMapInfo>());
        assert_eq!(offset_of!(MapInfo, resource), offset_of!(sys::CUarrayMapInfo, resource));
        assert_eq!(offset_of!(MapInfo, operation), offset_of!(sys::CUarrayMapInfo, memOperationType));
        assert_eq!(offset_of!(MapInfo, handle), offset_of!(sys::CUarrayMapInfo, memHandle));
        assert_eq!(MAP, sys::CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP as i32);
    }
}
