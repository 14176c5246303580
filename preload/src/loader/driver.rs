//! Calls of the driver and NVML by name, for this library's own use.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use vgpu_cuda_abi::cuda::{self, Device, DevicePtr, Handle, Status};
use vgpu_cuda_abi::nvml;

use super::symbols::look_up;
use crate::entry_points::library::Library;

/// Declares functions that call the driver: `name = Symbol(arguments)`. A missing function gives `$missing`.
macro_rules! calls {
    ($library:ident, $missing:expr; $($(#[$doc:meta])* $name:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As CUDA's or NVML's documentation says of the function.
        pub unsafe fn $name($($argument: $type),*) -> Status {
            static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let mut real = REAL.load(Relaxed);
            if real.is_null() {
                real = look_up(Library::$library, NAME);
                REAL.store(real, Relaxed);
            }
            // SAFETY: the driver's function of that name has that signature; the arguments are the caller's.
            unsafe {
                core::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> Status>>(real)
                    .map_or($missing, |real| real($($argument),*))
            }
        }
    )*};
}

calls! { Cuda, cuda::NOT_FOUND;
    /// Number of devices this process sees.
    device_count = cuDeviceGetCount(count: *mut i32);
    /// Device by ordinal.
    device_get = cuDeviceGet(device: *mut Device, ordinal: i32);
    /// The device's UUID; a MIG device's own.
    device_uuid = cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: Device);
    /// The same on drivers before 11.4.
    device_uuid_v1 = cuDeviceGetUuid(uuid: *mut [u8; 16], device: Device);
    /// Total memory in bytes.
    device_total = cuDeviceTotalMem_v2(bytes: *mut usize, device: Device);
    /// A device attribute.
    device_attribute = cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: Device);
    /// Reserved and used graph memory.
    device_graph_memory = cuDeviceGetGraphMemAttribute(device: Device, attribute: i32, value: *mut u64);
    /// The device's current pool.
    device_pool = cuDeviceGetMemPool(pool: *mut Handle, device: Device);
    /// The pool that a device began with.
    device_default_pool = cuDeviceGetDefaultMemPool(pool: *mut Handle, device: Device);
    /// Device of the current context.
    current_device = cuCtxGetDevice(device: *mut Device);
    /// Limit of the current context.
    context_limit = cuCtxGetLimit(value: *mut usize, limit: i32);
    /// Sets it.
    set_context_limit = cuCtxSetLimit(limit: i32, value: usize);
    /// Destroys a context.
    context_destroy = cuCtxDestroy_v2(context: Handle);
    /// Releases a primary context.
    primary_release = cuDevicePrimaryCtxRelease_v2(device: Device);
    /// The primary context, made if need be.
    primary_retain = cuDevicePrimaryCtxRetain(context: *mut Handle, device: Device);
    /// Whether a primary context exists.
    primary_state = cuDevicePrimaryCtxGetState(device: Device, flags: *mut u32, active: *mut i32);
    /// Free and total bytes of the current device.
    memory_info = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// Frees linear memory.
    free = cuMemFree_v2(address: DevicePtr);
    /// Frees memory when a stream has come so far.
    free_ordered = cuMemFreeAsync(address: DevicePtr, stream: Handle);
    /// Allocates linear memory.
    allocate = cuMemAlloc_v2(address: *mut DevicePtr, bytes: usize);
    /// Allocates managed memory.
    allocate_managed = cuMemAllocManaged(address: *mut DevicePtr, bytes: usize, flags: u32);
    /// Says where managed memory should live.
    advise = cuMemAdvise(address: DevicePtr, bytes: usize, advice: i32, device: Device);
    /// The allocation that an address lies in.
    address_range = cuMemGetAddressRange_v2(base: *mut DevicePtr, size: *mut usize, address: DevicePtr);
    /// What kind of memory an address is, and the like.
    pointer_attribute = cuPointerGetAttribute(data: *mut c_void, attribute: i32, address: DevicePtr);
    /// A pool's attribute.
    pool_attribute = cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: *mut u64);
    /// Gives unused memory of a pool back to the device.
    pool_trim = cuMemPoolTrimTo(pool: Handle, keep: usize);
    /// Destroys a pool.
    pool_destroy = cuMemPoolDestroy(pool: Handle);
    /// Waits for everything in the current context.
    context_synchronize = cuCtxSynchronize();
    /// An array, 3D or not.
    array_create = cuArray3DCreate_v2(array: *mut Handle, descriptor: *const cuda::Array3dDescriptor);
    /// Destroys an array.
    array_destroy = cuArrayDestroy(array: Handle);
    /// What an array needs, for one whose memory is mapped later.
    array_requirements = cuArrayGetMemoryRequirements(requirements: *mut cuda::ArrayRequirements, array: Handle, device: Device);
    /// A mipmapped array.
    mipmap_create = cuMipmappedArrayCreate(array: *mut Handle, descriptor: *const cuda::Array3dDescriptor, levels: u32);
    /// Destroys a mipmapped array.
    mipmap_destroy = cuMipmappedArrayDestroy(array: Handle);
    /// What a mipmapped array needs.
    mipmap_requirements = cuMipmappedArrayGetMemoryRequirements(requirements: *mut cuda::ArrayRequirements, array: Handle, device: Device);
    /// Unloads a module.
    module_unload = cuModuleUnload(module: Handle);
    /// Unloads a library.
    library_unload = cuLibraryUnload(library: Handle);
    /// A library's module in the current context, where it is loaded if need be.
    library_module = cuLibraryGetModule(module: *mut Handle, library: Handle);
    /// Lets go of a handle of physical memory.
    physical_release = cuMemRelease(handle: u64);
    /// Closes what was opened by a handle of another process's.
    ipc_close = cuIpcCloseMemHandle(address: DevicePtr);
    /// Lets go of another API's memory.
    external_destroy = cuDestroyExternalMemory(memory: Handle);
    /// Destroys a green context.
    green_destroy = cuGreenCtxDestroy(green: Handle);
    /// Destroys a stream.
    stream_destroy = cuStreamDestroy_v2(stream: Handle);
    /// A function's name.
    function_name = cuFuncGetName(name: *mut *const core::ffi::c_char, function: Handle);
    /// A kernel's name.
    kernel_name = cuKernelGetName(name: *mut *const core::ffi::c_char, kernel: Handle);
    /// A function's attribute.
    function_attribute = cuFuncGetAttribute(value: *mut i32, attribute: i32, function: Handle);
    /// A kernel's attribute.
    kernel_attribute = cuKernelGetAttribute(value: *mut i32, attribute: i32, kernel: Handle, device: Device);
    /// Destroys an instantiated graph.
    graph_exec_destroy = cuGraphExecDestroy(exec: Handle);
    /// Nodes of a graph.
    graph_nodes = cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    /// A node's kind.
    node_type = cuGraphNodeGetType(node: Handle, kind: *mut i32);
    /// A memory node's parameters.
    node_allocation = cuGraphMemAllocNodeGetParams(node: Handle, parameters: *mut cuda::AllocNodeParams);
    /// A kernel node's parameters.
    node_kernel = cuGraphKernelNodeGetParams_v2(node: Handle, parameters: *mut cuda::KernelNodeParams);
    /// Gives back graph memory that no graph uses.
    trim_graphs = cuDeviceGraphMemTrim(device: Device);
    /// A child graph node's graph.
    node_child = cuGraphChildGraphNodeGetGraph(node: Handle, graph: *mut Handle);
    /// Whether a stream is being captured.
    is_capturing = cuStreamIsCapturing(stream: Handle, status: *mut i32);
    /// A number that no other stream of the process has had.
    stream_id = cuStreamGetId(stream: Handle, id: *mut u64);
    /// A stream's context.
    stream_context = cuStreamGetCtx(stream: Handle, context: *mut Handle);
    /// Waits for a stream.
    stream_synchronize = cuStreamSynchronize(stream: Handle);
    /// Whether everything in a stream is finished.
    stream_query = cuStreamQuery(stream: Handle);
    /// Makes an event.
    event_create = cuEventCreate(event: *mut Handle, flags: u32);
    /// Puts an event into a stream.
    event_record = cuEventRecord(event: Handle, stream: Handle);
    /// Whether an event is finished.
    event_query = cuEventQuery(event: Handle);
    /// Milliseconds between two finished events.
    event_elapsed = cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle);
    /// Makes a context current.
    context_push = cuCtxPushCurrent_v2(context: Handle);
    /// Undoes that.
    context_pop = cuCtxPopCurrent_v2(context: *mut Handle);
}

calls! { Cuda, cuda::NOT_FOUND;
    /// Sets the thread's capture mode and gives the one before.
    exchange_capture_mode = cuThreadExchangeStreamCaptureMode(mode: *mut i32);
    /// The current context.
    context_current = cuCtxGetCurrent(context: *mut Handle);
}

/// While this lives, questions of ours do not invalidate a capture that the program has under way in this thread.
pub struct CaptureRelaxed(i32);

impl CaptureRelaxed {
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`
    const RELAXED: i32 = 2;

    /// From here on.
    pub fn enter() -> Self {
        let mut mode = Self::RELAXED;
        // SAFETY: the driver exchanges one integer.
        unsafe { exchange_capture_mode(&raw mut mode) };
        Self(mode)
    }
}

impl Drop for CaptureRelaxed {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { exchange_capture_mode(&raw mut self.0) };
    }
}

/// The calling thread's current context, or null.
#[inline]
pub fn current_context() -> Handle {
    let mut context = core::ptr::null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { context_current(&raw mut context) };
    context
}

calls! { Nvml, nvml::FUNCTION_NOT_FOUND;
    /// Starts NVML; counted.
    nvml_init = nvmlInit_v2();
    /// Device by UUID.
    nvml_by_uuid = nvmlDeviceGetHandleByUUID(uuid: *const core::ffi::c_char, device: *mut Handle);
    /// The device's UUID.
    nvml_uuid = nvmlDeviceGetUUID(device: Handle, uuid: *mut core::ffi::c_char, length: u32);
    /// The device's place in NVML's order.
    nvml_index = nvmlDeviceGetIndex(device: Handle, index: *mut u32);
    /// Values by number.
    nvml_fields = nvmlDeviceGetFieldValues(device: Handle, count: i32, values: *mut nvml::FieldValue);
    /// The power limit in force, in milliwatts.
    nvml_power_limit = nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: *mut u32);
    /// The power limit as it comes, in milliwatts.
    nvml_usual_power_limit = nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: *mut u32);
    /// How busy it is.
    nvml_utilization = nvmlDeviceGetUtilizationRates(device: Handle, rates: *mut nvml::UtilizationRates);
    /// What each process used since a time.
    nvml_process_utilization = nvmlDeviceGetProcessUtilization(
        device: Handle,
        samples: *mut nvml::UtilizationSample,
        count: *mut u32,
        since: u64
    );
    /// Processes with a compute context.
    nvml_compute_processes = nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut u32, list: *mut nvml::Process);
}
