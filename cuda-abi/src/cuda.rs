//! Types and constants of CUDA's driver interface. The tests compare each with `cudarc`'s.

use core::ffi::c_void;

/// `CUresult`.
pub type Status = i32;
/// `CUdeviceptr`.
pub type DevicePtr = u64;
/// `CUdevice`: the ordinal of a device in this process.
pub type Device = i32;
/// Opaque handle of a context, stream, function, module, array, pool or graph.
pub type Handle = *mut c_void;
/// `CUDA_SUCCESS`
pub const SUCCESS: Status = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_DEINITIALIZED`: the driver is shutting down.
pub const DEINITIALIZED: Status = 4;
/// `CUDA_ERROR_NOT_SUPPORTED`
pub const NOT_SUPPORTED: Status = 801;
/// `CUDA_ERROR_OPERATING_SYSTEM`
pub const OPERATING_SYSTEM: Status = 304;
/// `CUDA_ERROR_INVALID_VALUE`
pub const INVALID_VALUE: Status = 1;
/// `CUDA_ERROR_NOT_READY`
pub const NOT_READY: Status = 600;
/// `CUDA_ERROR_NOT_FOUND`
pub const NOT_FOUND: Status = 500;
/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`
pub const CAPTURE_INVALIDATED: Status = 901;
/// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`
pub const CAPTURE_UNJOINED: Status = 904;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`
pub const CAPTURE_IMPLICIT: Status = 906;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`
pub const LOCATION_HOST: i32 = 2;
/// `CU_DEVICE_CPU`
pub const DEVICE_CPU: Device = -1;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
pub const POOL_RESERVED_CURRENT: i32 = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`
pub const POOL_USED_CURRENT: i32 = 7;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
pub const GRAPH_RESERVED_CURRENT: i32 = 2;
/// `CU_GRAPH_NODE_TYPE_KERNEL`
pub const NODE_KERNEL: i32 = 0;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`
pub const NODE_MEM_ALLOC: i32 = 10;
/// `CU_GRAPH_NODE_TYPE_GRAPH`
pub const NODE_CHILD_GRAPH: i32 = 4;
/// `CU_LIMIT_STACK_SIZE`
pub const LIMIT_STACK_SIZE: i32 = 0;
/// `CU_LIMIT_PRINTF_FIFO_SIZE`
pub const LIMIT_PRINTF_FIFO_SIZE: i32 = 1;
/// `CU_LIMIT_MALLOC_HEAP_SIZE`
pub const LIMIT_MALLOC_HEAP_SIZE: i32 = 2;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`
pub const ATTRIBUTE_CAPABILITY_MAJOR: i32 = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`
pub const ATTRIBUTE_CAPABILITY_MINOR: i32 = 76;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
pub const ATTRIBUTE_MULTIPROCESSORS: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`
pub const ATTRIBUTE_THREADS_PER_MULTIPROCESSOR: i32 = 39;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
pub const ATTRIBUTE_VMM_SUPPORTED: i32 = 102;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`
pub const ATTRIBUTE_RANGE_START: i32 = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`
pub const ATTRIBUTE_RANGE_SIZE: i32 = 12;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`
pub const ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: i32 = 89;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`
pub const FUNCTION_LOCAL_SIZE: i32 = 3;
/// `CUDA_ARRAY3D_LAYERED`
pub const ARRAY_LAYERED: u32 = 0x01;
/// `CUDA_ARRAY3D_SURFACE_LDST`
pub const ARRAY_SURFACE: u32 = 0x02;
/// `CUDA_ARRAY3D_CUBEMAP`
pub const ARRAY_CUBEMAP: u32 = 0x04;
/// `CUDA_ARRAY3D_TEXTURE_GATHER`
pub const ARRAY_GATHER: u32 = 0x08;
/// `CUDA_ARRAY3D_SPARSE`
pub const ARRAY_SPARSE: u32 = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`
pub const ARRAY_DEFERRED: u32 = 0x80;

/// Default stream.
pub const DEFAULT_STREAM: Handle = core::ptr::null_mut();
/// `CU_STREAM_PER_THREAD`
pub const PER_THREAD_STREAM: Handle = 2 as Handle;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`
pub const POINTER_MEMORY_TYPE: i32 = 2;
/// `CU_MEMORYTYPE_DEVICE`, the value of [`POINTER_MEMORY_TYPE`] for device memory and managed memory.
pub const MEMORY_TYPE_DEVICE: i32 = 2;

/// Returns the stream that a call uses. The forms with `_ptsz` or `_ptds` (`PER_THREAD`) use the thread's own default stream for 0.
#[inline]
pub fn effective_stream<const PER_THREAD: bool>(stream: Handle) -> Handle {
    if PER_THREAD && stream.is_null() { PER_THREAD_STREAM } else { stream }
}

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Location {
    /// `CUmemLocationType`
    pub kind: i32,
    /// Ordinal of the device; 0 for other locations.
    pub id: i32,
}

/// `CUmemAllocationProp`, up to the last field that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// `CUmemAllocationType`
    pub kind: i32,
    /// `CUmemAllocationHandleType`
    pub handle_types: i32,
    /// Requested location of the memory.
    pub location: Location,
}

impl AllocationProp {
    /// Pinned memory of a device (`CU_MEM_ALLOCATION_TYPE_PINNED`) that is not exported.
    #[must_use]
    pub const fn of_device(device: Device) -> Self {
        Self { kind: 1, handle_types: 0, location: Location { kind: LOCATION_DEVICE, id: device } }
    }
}

/// `CUmemAllocationProp` whole, for calls that pass it to the driver.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WholeAllocationProp {
    /// The fields that are set.
    pub begin: AllocationProp,
    /// `win32HandleMetaData` and `allocFlags`.
    pub rest: [u64; 2],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessDesc {
    /// Who may use the mapping.
    pub location: Location,
    /// `CUmemAccess_flags`
    pub flags: i32,
}

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
pub const ACCESS_READ_WRITE: i32 = 3;
/// `CU_MEMHOSTREGISTER_PORTABLE`
pub const REGISTER_PORTABLE: u32 = 1;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, up to the last field that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocNodeParams {
    /// `poolProps`
    pub pool: AllocationProp,
    /// Remaining fields of `poolProps`.
    pub pool_rest: [u64; 9],
    /// `accessDescs`
    pub access: *const c_void,
    /// `accessDescCount`
    pub access_count: usize,
    /// `bytesize`: size of the allocation in bytes.
    pub bytes: usize,
    /// `dptr`: address of the allocation.
    pub address: DevicePtr,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelNodeParams {
    /// `func`: function of a module; null if the node launches a library's kernel.
    pub function: Handle,
    /// Grid in blocks (three), block in threads (three), dynamic shared memory in bytes.
    pub shape: [u32; 7],
    /// `kernelParams` and `extra`
    pub arguments: [*mut c_void; 2],
    /// `kern`: kernel of a library; null if the node launches a function of a module.
    pub kernel: Handle,
    /// `ctx`
    pub context: Handle,
}

impl KernelNodeParams {
    /// Returns the function or kernel that a node launches; `None` for null parameters or handles. Parameters of `VERSION` 1 end before
    /// [`KernelNodeParams::kernel`].
    ///
    /// # Safety
    /// `parameters` is null or points to parameters of that version.
    pub unsafe fn function_of<const VERSION: u32>(parameters: *const Self) -> Option<Handle> {
        if parameters.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let function = unsafe {
            let function = (&raw const (*parameters).function).read();
            if function.is_null() && VERSION > 1 { (&raw const (*parameters).kernel).read() } else { function }
        };
        (!function.is_null()).then_some(function)
    }

    /// Returns the function or kernel that a `CUgraphNodeParams` launches: the node's type comes first, its parameters 16 bytes later.
    ///
    /// # Safety
    /// `parameters` is null or points to a whole structure.
    pub unsafe fn function_of_node(parameters: *const c_void) -> Option<Handle> {
        // SAFETY: the caller's promise.
        unsafe {
            let is_kernel = parameters.cast::<i32>().as_ref() == Some(&NODE_KERNEL);
            if is_kernel { Self::function_of::<2>(parameters.byte_add(16).cast()) } else { None }
        }
    }
}

/// `CUDA_ARRAY_DESCRIPTOR_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrayDescriptor {
    /// Width in elements.
    pub width: usize,
    /// Height in elements; 0 for one dimension.
    pub height: usize,
    /// `CUarray_format`
    pub format: u32,
    /// Number of channels of an element.
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Array3dDescriptor {
    /// Width in elements.
    pub width: usize,
    /// Height in elements; 0 for one dimension.
    pub height: usize,
    /// Depth in elements, or number of layers.
    pub depth: usize,
    /// `CUarray_format`
    pub format: u32,
    /// Number of channels of an element.
    pub channels: u32,
    /// Bits of `CUDA_ARRAY3D_*`.
    pub flags: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrayRequirements {
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub alignment: usize,
    /// `reserved`
    reserved: [u32; 4],
}

/// `CUlaunchConfig`, up to the last field that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Grid in blocks.
    pub grid: [u32; 3],
    /// Block in threads.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Stream of the launch.
    pub stream: Handle,
}

/// `CUDA_LAUNCH_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchParams {
    /// Function to launch.
    pub function: Handle,
    /// Grid in blocks.
    pub grid: [u32; 3],
    /// Block in threads.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Stream of the launch.
    pub stream: Handle,
    /// Arguments of the kernel.
    pub parameters: *mut *mut c_void,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use cudarc::driver::sys;

    #[test]
    fn constants_match_cuda() {
        use sys::CUresult as R;
        assert_eq!(
            [SUCCESS, OUT_OF_MEMORY, OPERATING_SYSTEM, NOT_FOUND],
            [R::CUDA_SUCCESS, R::CUDA_ERROR_OUT_OF_MEMORY, R::CUDA_ERROR_OPERATING_SYSTEM, R::CUDA_ERROR_NOT_FOUND].map(|code| code as i32)
        );
        assert_eq!(NOT_SUPPORTED, R::CUDA_ERROR_NOT_SUPPORTED as i32);
        assert_eq!(LOCATION_DEVICE, sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i32);
        assert_eq!(LOCATION_HOST, sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST as i32);
        assert_eq!(INVALID_VALUE, R::CUDA_ERROR_INVALID_VALUE as i32);
        assert_eq!(ATTRIBUTE_VMM_SUPPORTED, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as i32);
        assert_eq!(ATTRIBUTE_RANGE_START, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as i32);
        assert_eq!(ATTRIBUTE_RANGE_SIZE, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as i32);
        assert_eq!(ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as i32);
        assert_eq!(POOL_USED_CURRENT, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as i32);
        assert_eq!(POOL_RESERVED_CURRENT, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as i32);
        assert_eq!(GRAPH_RESERVED_CURRENT, sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT as i32);
        assert_eq!(NODE_MEM_ALLOC, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC as i32);
        assert_eq!(NODE_KERNEL, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL as i32);
        assert_eq!(NODE_CHILD_GRAPH, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH as i32);
        assert_eq!(LIMIT_STACK_SIZE, sys::CUlimit::CU_LIMIT_STACK_SIZE as i32);
        assert_eq!(LIMIT_PRINTF_FIFO_SIZE, sys::CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE as i32);
        assert_eq!(LIMIT_MALLOC_HEAP_SIZE, sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE as i32);
        assert_eq!(ATTRIBUTE_CAPABILITY_MAJOR, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as i32);
        assert_eq!(ATTRIBUTE_CAPABILITY_MINOR, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as i32);
        assert_eq!(ATTRIBUTE_MULTIPROCESSORS, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as i32);
        assert_eq!(
            ATTRIBUTE_THREADS_PER_MULTIPROCESSOR,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR as i32
        );
        assert_eq!(FUNCTION_LOCAL_SIZE, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES as i32);
        assert_eq!((ARRAY_LAYERED, ARRAY_CUBEMAP), (sys::CUDA_ARRAY3D_LAYERED, sys::CUDA_ARRAY3D_CUBEMAP));
        assert_eq!((ARRAY_SURFACE, ARRAY_GATHER), (sys::CUDA_ARRAY3D_SURFACE_LDST, sys::CUDA_ARRAY3D_TEXTURE_GATHER));
        assert_eq!((ARRAY_SPARSE, ARRAY_DEFERRED), (sys::CUDA_ARRAY3D_SPARSE, sys::CUDA_ARRAY3D_DEFERRED_MAPPING));
    }

    #[test]
    fn layouts_match_cuda() {
        assert_eq!(size_of::<WholeAllocationProp>(), size_of::<sys::CUmemAllocationProp>());
        assert_eq!(size_of::<AccessDesc>(), size_of::<sys::CUmemAccessDesc>());
        assert_eq!(offset_of!(AccessDesc, flags), offset_of!(sys::CUmemAccessDesc, flags));
        assert_eq!(ACCESS_READ_WRITE, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as i32);
        assert_eq!(AllocationProp::of_device(0).kind, sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as i32);
        assert_eq!(REGISTER_PORTABLE, sys::CU_MEMHOSTREGISTER_PORTABLE);
        assert_eq!(offset_of!(AllocationProp, handle_types), offset_of!(sys::CUmemAllocationProp, requestedHandleTypes));
        assert_eq!(offset_of!(AllocationProp, location), offset_of!(sys::CUmemAllocationProp, location));
        assert_eq!(offset_of!(AllocationProp, location), offset_of!(sys::CUmemPoolProps, location));
        assert_eq!(offset_of!(Location, id), offset_of!(sys::CUmemLocation, id));
        assert_eq!(offset_of!(AllocNodeParams, bytes), offset_of!(sys::CUDA_MEM_ALLOC_NODE_PARAMS, bytesize));
        assert_eq!(offset_of!(AllocNodeParams, address), offset_of!(sys::CUDA_MEM_ALLOC_NODE_PARAMS, dptr));
        assert_eq!(offset_of!(KernelNodeParams, kernel), offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v2_st, kern));
        assert_eq!(size_of::<KernelNodeParams>(), size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v2_st>());
        assert_eq!(offset_of!(AllocNodeParams, access), offset_of!(sys::CUDA_MEM_ALLOC_NODE_PARAMS, accessDescs));
        assert_eq!(offset_of!(LaunchConfig, stream), offset_of!(sys::CUlaunchConfig, hStream));
        assert_eq!(offset_of!(LaunchConfig, block), offset_of!(sys::CUlaunchConfig, blockDimX));
        assert_eq!(offset_of!(LaunchParams, stream), offset_of!(sys::CUDA_LAUNCH_PARAMS, hStream));
        assert_eq!(size_of::<LaunchParams>(), size_of::<sys::CUDA_LAUNCH_PARAMS>());
        assert_eq!(NOT_READY, sys::CUresult::CUDA_ERROR_NOT_READY as i32);
        assert_eq!(POINTER_MEMORY_TYPE, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as i32);
        assert_eq!(MEMORY_TYPE_DEVICE, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as i32);
        assert_eq!(
            [CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_IMPLICIT],
            [
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as i32,
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED as i32,
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as i32,
            ]
        );
        assert_eq!(size_of::<ArrayDescriptor>(), size_of::<sys::CUDA_ARRAY_DESCRIPTOR>());
        assert_eq!(size_of::<Array3dDescriptor>(), size_of::<sys::CUDA_ARRAY3D_DESCRIPTOR>());
        assert_eq!(offset_of!(Array3dDescriptor, flags), offset_of!(sys::CUDA_ARRAY3D_DESCRIPTOR, Flags));
        assert_eq!(size_of::<ArrayRequirements>(), size_of::<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>());
    }
}
