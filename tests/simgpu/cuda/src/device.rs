//! Device queries.

use std::ffi::{c_char, c_void};

use cudarc::driver::sys::{CUdevice_attribute_enum as Attribute, CUresult, CUuuid};
use simgpu_device::config;

use crate::driver::driver;
use crate::ffi::{CudaResult, INVALID_VALUE, put, put_optional, read_slice, read_str};

/// Attributes of an H200 that are neither zero nor computed. Unlisted attributes are zero.
const ATTRIBUTES: &[(Attribute, i32)] = &[
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152),
    (Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536),
    (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH, i32::MAX),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536),
    (Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_980_000),
    (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512),
    (Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131_072),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131_072),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048),
    (Attribute::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512),
    (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3_201_000),
    (Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6016),
    (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62_914_560),
    (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3),
    (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, 8192),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, 8192),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, 2046),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131_072),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65536),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, 16384),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, 16384),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, 16384),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS, 2048),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS, 2048),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, 2046),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 268_435_456),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131_072),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2_097_120),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, 32768),
    (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233_472),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    (Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
    (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232_448),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 39_321_600),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 134_217_728),
    (Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 9),
    (Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 4),
    (Attribute::CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_NUMA_ID, -1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
];

fn attribute(ordinal: i32, number: u32) -> CudaResult<i32> {
    let driver = driver()?;
    let gpu = driver.gpu_index(ordinal)?;
    let machine = driver.device().config();
    if number == 0 || number >= Attribute::CU_DEVICE_ATTRIBUTE_MAX as u32 {
        return Err(INVALID_VALUE);
    }
    let computed = [
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, machine.multiprocessors as i32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, machine.threads_per_multiprocessor as i32),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, config::COMPUTE_CAPABILITY.0),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, config::COMPUTE_CAPABILITY.1),
        (Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, config::pci_bus(gpu) as i32),
    ];
    let known = ATTRIBUTES.iter().chain(&computed).find(|(attribute, _)| *attribute as u32 == number);
    Ok(known.map_or(0, |&(_, value)| value))
}

/// Writes a string with its terminator, truncated to `room` bytes.
fn put_text(out: *mut c_char, room: i32, value: &str) -> CudaResult {
    let room = usize::try_from(room).ok().filter(|&room| room > 0 && !out.is_null()).ok_or(INVALID_VALUE)?;
    let length = value.len().min(room - 1);
    // SAFETY: by CUDA's contract `out` has `room` bytes; string and terminator fit.
    unsafe {
        out.copy_from_nonoverlapping(value.as_ptr().cast(), length);
        out.add(length).write(0);
    }
    Ok(())
}

fn put_uuid(out: *mut CUuuid, ordinal: i32) -> CudaResult {
    let gpu = driver()?.gpu_index(ordinal)?;
    put(out, CUuuid { bytes: config::uuid(gpu).map(|byte| byte as c_char) })
}

fn total(out: *mut usize, ordinal: i32) -> CudaResult {
    let driver = driver()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    driver.gpu_index(ordinal)?;
    put(out, driver.device().config().cuda_total() as usize)
}

fn bus_id(gpu: usize) -> String {
    format!("0000:{:02X}:00.0", config::pci_bus(gpu))
}

api! {
    fn cuDeviceGetCount(out: *mut i32) {
        let driver = driver()?;
        put(out, driver.visible_gpus.len() as i32)
    }

    fn cuDeviceGet(out: *mut i32, ordinal: i32) {
        let driver = driver()?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        driver.gpu_index(ordinal)?;
        put(out, ordinal)
    }

    fn cuDeviceGetName(out: *mut c_char, room: i32, device: i32) {
        driver()?.gpu_index(device)?;
        put_text(out, room, config::NAME)
    }

    fn cuDeviceGetUuid(out: *mut CUuuid, device: i32) { put_uuid(out, device) }
    fn cuDeviceGetUuid_v2(out: *mut CUuuid, device: i32) { put_uuid(out, device) }
    fn cuDeviceTotalMem_v2(out: *mut usize, device: i32) { total(out, device) }

    fn cuDeviceTotalMem(out: *mut u32, device: i32) {
        let mut bytes = 0;
        total(&raw mut bytes, device)?;
        put(out, u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    fn cuDeviceGetAttribute(out: *mut i32, number: u32, device: i32) {
        let driver = driver()?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        driver.gpu_index(device)?;
        put(out, attribute(device, number)?)
    }

    fn cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, device: i32) {
        driver()?.gpu_index(device)?;
        put(major, config::COMPUTE_CAPABILITY.0)?;
        put(minor, config::COMPUTE_CAPABILITY.1)
    }

    fn cuDeviceGetPCIBusId(out: *mut c_char, room: i32, device: i32) {
        let gpu = driver()?.gpu_index(device)?;
        let id = bus_id(gpu);
        if usize::try_from(room).is_ok_and(|room| room <= id.len()) {
            return Err(INVALID_VALUE);
        }
        put_text(out, room, &id)
    }

    fn cuDeviceGetByPCIBusId(out: *mut i32, id: *const c_char) {
        let driver = driver()?;
        let id = read_str(id)?;
        let found = driver.visible_gpus.iter().position(|&gpu| bus_id(gpu).eq_ignore_ascii_case(id));
        put(out, found.ok_or(INVALID_VALUE)? as i32)
    }

    fn cuDeviceCanAccessPeer(out: *mut i32, device: i32, peer: i32) {
        let driver = driver()?;
        let (one, other) = (driver.gpu_index(device)?, driver.gpu_index(peer)?);
        put(out, i32::from(one != other))
    }

    fn cuDeviceGetLuid(_out: *mut c_char, _mask: *mut u32, _device: i32) {
        Err(crate::ffi::NOT_SUPPORTED)
    }

    fn cuDeviceGetProperties(out: *mut cudarc::driver::sys::CUdevprop, device: i32) {
        let value = |attribute_: Attribute| attribute(device, attribute_ as u32);
        let properties = cudarc::driver::sys::CUdevprop {
            maxThreadsPerBlock: value(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            maxThreadsDim: [1024, 1024, 64],
            maxGridSize: [i32::MAX, 65535, 65535],
            sharedMemPerBlock: value(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
            totalConstantMemory: 65536,
            SIMDWidth: 32,
            memPitch: i32::MAX,
            regsPerBlock: 65536,
            clockRate: value(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            textureAlign: 512,
        };
        put(out, properties)
    }

    fn cuDeviceGetP2PAttribute(out: *mut i32, _attribute: u32, device: i32, peer: i32) {
        let driver = driver()?;
        let (one, other) = (driver.gpu_index(device)?, driver.gpu_index(peer)?);
        if one == other {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        put(out, 1)
    }

    fn cuDeviceGetExecAffinitySupport(out: *mut i32, _kind: u32, device: i32) {
        driver()?.gpu_index(device)?;
        put(out, 0)
    }

    fn cuGetExportTable(out: *mut *const c_void, id: *const CUuuid) {
        read_slice(id, 1)?;
        put_optional(out, std::ptr::null());
        Err(CUresult::CUDA_ERROR_NOT_FOUND)
    }
}
