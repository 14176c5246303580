//! The table's rows for what the driver answers only while the memory is mapped.

/// Hands the given rows, these, and those of the other files to the macro `$consumer`.
macro_rules! and_mapped {
    ($consumer:ident $($rows:tt)*) => {
        $crate::table::nvml::and_nvml! { $consumer
            $($rows)*
            Cuda movable::attribute[value, attribute, address] => (value: *mut c_void, attribute: i32, address: DevicePtr):
                cuPointerGetAttribute;
            Cuda movable::ask[] => (value: *const c_void, attribute: i32, address: DevicePtr): cuPointerSetAttribute;
            Cuda movable::attributes[count, attributes, values, address] => (count: u32, attributes: *mut i32, values: *mut *mut c_void,
                address: DevicePtr):
                cuPointerGetAttributes;
            Cuda movable::ask[] => (stream: Handle, address: DevicePtr, value: u64, flags: u32):
                cuStreamWriteValue32_v2, cuStreamWriteValue64_v2, cuStreamWriteValue32, cuStreamWriteValue64, cuStreamWriteValue32_v2_ptsz,
                cuStreamWriteValue64_v2_ptsz, cuStreamWriteValue32_ptsz, cuStreamWriteValue64_ptsz;
            Cuda movable::range[base, bytes, address] => (base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr):
                cuMemGetAddressRange_v2;
            Cuda movable::ask[] => (base: *mut u32, bytes: *mut u32, address: u32): cuMemGetAddressRange;
            Cuda movable::ask[] => (texture: *mut u64, resource: *const c_void, how: *const c_void, view: *const c_void):
                cuTexObjectCreate;
            Cuda movable::ask[] => (offset: *mut usize, texture: Handle, address: DevicePtr, bytes: usize): cuTexRefSetAddress_v2;
            Cuda movable::ask[] => (texture: Handle, description: *const c_void, address: DevicePtr, pitch: usize):
                cuTexRefSetAddress2D_v2, cuTexRefSetAddress2D_v3;
            Cuda movable::ask[] => (offset: *mut u32, texture: Handle, address: u32, bytes: u32): cuTexRefSetAddress;
            Cuda movable::ask[] => (texture: Handle, description: *const c_void, address: u32, pitch: u32): cuTexRefSetAddress2D;
            Cuda movable::ask[] => (node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *const c_void,
                context: Handle):
                cuGraphAddMemcpyNode, cuGraphAddMemsetNode;
            Cuda movable::ask[] => (node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *const c_void):
                cuGraphAddBatchMemOpNode;
            Cuda movable::ask[] => (node: Handle, parameters: *const c_void):
                cuGraphMemcpyNodeSetParams, cuGraphMemsetNodeSetParams, cuGraphBatchMemOpNodeSetParams;
            Cuda movable::ask[] => (exec: Handle, node: Handle, parameters: *const c_void, context: Handle):
                cuGraphExecMemcpyNodeSetParams, cuGraphExecMemsetNodeSetParams;
            Cuda movable::ask[] => (exec: Handle, node: Handle, parameters: *const c_void): cuGraphExecBatchMemOpNodeSetParams;
            Cuda movable::ask[] => (address: DevicePtr, bytes: usize): cuMemAddressFree;
            Cuda movable::ask[] => (flags: *mut u64, location: *const Location, address: DevicePtr): cuMemGetAccess;
            Cuda movable::ask[] => (address: DevicePtr, bytes: usize, list: *const AccessDesc, count: usize): cuMemSetAccess;
        }
    };
}

pub(crate) use and_mapped;
