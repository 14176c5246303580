//! Structures of single functions.

use core::ffi::c_void;

/// `CUDA_ARRAY_DESCRIPTOR_v1`
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor {
    pub width: u32,
    pub height: u32,
    pub format: u32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor3d {
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// `CU_MEM_OPERATION_TYPE_MAP`
pub const MAP: i32 = 1;

/// `CUarrayMapInfo`, up to what is read.
#[repr(C)]
#[derive(Debug)]
pub struct MapInfo {
    pub resource_kind: i32,
    pub resource: u64,
    pub subresource_kind: i32,
    pub subresource: [u64; 4],
    pub operation: i32,
    pub handle_kind: i32,
    pub handle: u64,
    pub offset: u64,
    pub rest: [u32; 4],
}

/// `CUipcMemHandle`: passed whole.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle(pub [u64; 8]);

/// `CUcheckpointRestoreArgs`, up to what is read; drivers before CUDA 13 have zeros there.
#[repr(C)]
#[derive(Debug)]
pub struct RestoreArgs {
    pub pairs: *const c_void,
    pub pair_count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn layouts_are_cudas() {
        assert_eq!(size_of::<IpcHandle>(), size_of::<sys::CUipcMemHandle>());
        assert_eq!(offset_of!(RestoreArgs, pair_count), offset_of!(sys::CUcheckpointRestoreArgs, gpuPairsCount));
        assert_eq!(size_of::<MapInfo>(), size_of::<sys::CUarrayMapInfo>());
        assert_eq!(offset_of!(MapInfo, resource), offset_of!(sys::CUarrayMapInfo, resource));
        assert_eq!(offset_of!(MapInfo, operation), offset_of!(sys::CUarrayMapInfo, memOperationType));
        assert_eq!(offset_of!(MapInfo, handle), offset_of!(sys::CUarrayMapInfo, memHandle));
        assert_eq!(MAP, sys::CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP as i32);
    }
}
