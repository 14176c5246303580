//! The library's own calls of the driver and NVML.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use vgpu_cuda_abi::cuda::{self, Device, DevicePtr, Handle, Status};
use vgpu_cuda_abi::nvml;

use super::symbols::look_up;
use crate::entry_points::library::Library;

/// Declares functions that call the driver: `name = Symbol(arguments)`. A function that the driver lacks returns `$missing`.
macro_rules! calls {
    ($library:ident, $missing:expr; $($(#[$doc:meta])* $name:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As CUDA's or NVML's documentation requires.
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
    /// Counts the devices that this process sees.
    device_count = cuDeviceGetCount(count: *mut i32);
    /// Returns a device by ordinal.
    device_get = cuDeviceGet(device: *mut Device, ordinal: i32);
    /// Returns the UUID of a device or MIG device.
    device_uuid = cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: Device);
    /// Returns the UUID, on drivers before 11.4.
    device_uuid_v1 = cuDeviceGetUuid(uuid: *mut [u8; 16], device: Device);
    /// Returns the total memory in bytes.
    device_total = cuDeviceTotalMem_v2(bytes: *mut usize, device: Device);
    /// Returns an attribute of a device.
    device_attribute = cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: Device);
    /// Returns reserved or used graph memory in bytes.
    device_graph_memory = cuDeviceGetGraphMemAttribute(device: Device, attribute: i32, value: *mut u64);
    /// Returns a device's current pool.
    device_pool = cuDeviceGetMemPool(pool: *mut Handle, device: Device);
    /// Returns a device's default pool.
    device_default_pool = cuDeviceGetDefaultMemPool(pool: *mut Handle, device: Device);
    /// Returns the device of the current context.
    current_device = cuCtxGetDevice(device: *mut Device);
    /// Returns a limit of the current context.
    context_limit = cuCtxGetLimit(value: *mut usize, limit: i32);
    /// Sets a limit of the current context.
    set_context_limit = cuCtxSetLimit(limit: i32, value: usize);
    /// Destroys a context.
    context_destroy = cuCtxDestroy_v2(context: Handle);
    /// Releases a primary context.
    primary_release = cuDevicePrimaryCtxRelease_v2(device: Device);
    /// Retains a primary context, and makes it if needed.
    primary_retain = cuDevicePrimaryCtxRetain(context: *mut Handle, device: Device);
    /// Returns whether a primary context exists.
    primary_state = cuDevicePrimaryCtxGetState(device: Device, flags: *mut u32, active: *mut i32);
    /// Returns free and total bytes of the current device.
    memory_info = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// Frees linear memory.
    free = cuMemFree_v2(address: DevicePtr);
    /// Frees memory in stream order.
    free_ordered = cuMemFreeAsync(address: DevicePtr, stream: Handle);
    /// Allocates linear memory.
    allocate = cuMemAlloc_v2(address: *mut DevicePtr, bytes: usize);
    /// Allocates managed memory.
    allocate_managed = cuMemAllocManaged(address: *mut DevicePtr, bytes: usize, flags: u32);
    /// Advises where managed memory should be.
    advise = cuMemAdvise(address: DevicePtr, bytes: usize, advice: i32, device: Device);
    /// Returns the allocation that contains an address.
    address_range = cuMemGetAddressRange_v2(base: *mut DevicePtr, size: *mut usize, address: DevicePtr);
    /// Returns an attribute of an address.
    pointer_attribute = cuPointerGetAttribute(data: *mut c_void, attribute: i32, address: DevicePtr);
    /// Returns an attribute of a pool.
    pool_attribute = cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: *mut u64);
    /// Returns unused memory of a pool to the device.
    pool_trim = cuMemPoolTrimTo(pool: Handle, keep: usize);
    /// Destroys a pool.
    pool_destroy = cuMemPoolDestroy(pool: Handle);
    /// Waits for all work in the current context.
    context_synchronize = cuCtxSynchronize();
    /// Creates an array of one to three dimensions.
    array_create = cuArray3DCreate_v2(array: *mut Handle, descriptor: *const cuda::Array3dDescriptor);
    /// Destroys an array.
    array_destroy = cuArrayDestroy(array: Handle);
    /// Returns the memory requirements of an array whose memory is mapped later.
    array_requirements = cuArrayGetMemoryRequirements(requirements: *mut cuda::ArrayRequirements, array: Handle, device: Device);
    /// Creates a mipmapped array.
    mipmap_create = cuMipmappedArrayCreate(array: *mut Handle, descriptor: *const cuda::Array3dDescriptor, levels: u32);
    /// Destroys a mipmapped array.
    mipmap_destroy = cuMipmappedArrayDestroy(array: Handle);
    /// Returns the memory requirements of a mipmapped array.
    mipmap_requirements = cuMipmappedArrayGetMemoryRequirements(requirements: *mut cuda::ArrayRequirements, array: Handle, device: Device);
    /// Unloads a module.
    module_unload = cuModuleUnload(module: Handle);
    /// Unloads a library.
    library_unload = cuLibraryUnload(library: Handle);
    /// Returns a library's module in the current context, and loads it if needed.
    library_module = cuLibraryGetModule(module: *mut Handle, library: Handle);
    /// Reserves addresses.
    reserve = cuMemAddressReserve(address: *mut DevicePtr, bytes: usize, alignment: usize, wanted: DevicePtr, flags: u64);
    /// Gives reserved addresses back.
    unreserve = cuMemAddressFree(address: DevicePtr, bytes: usize);
    /// Creates physical memory.
    physical_create = cuMemCreate(handle: *mut u64, bytes: usize, properties: *const cuda::WholeAllocationProp, flags: u64);
    /// Releases a handle of physical memory.
    physical_release = cuMemRelease(handle: u64);
    /// Maps physical memory at reserved addresses.
    map = cuMemMap(address: DevicePtr, bytes: usize, offset: usize, handle: u64, flags: u64);
    /// Unmaps physical memory.
    unmap = cuMemUnmap(address: DevicePtr, bytes: usize);
    /// Lets devices use a mapping.
    set_access = cuMemSetAccess(address: DevicePtr, bytes: usize, list: *const cuda::AccessDesc, count: usize);
    /// Returns how a device may use a mapping.
    get_access = cuMemGetAccess(flags: *mut u64, location: *const cuda::Location, address: DevicePtr);
    /// Returns whether a device can use another's memory.
    can_access_peer = cuDeviceCanAccessPeer(can: *mut i32, device: Device, peer: Device);
    /// Pins and maps host memory.
    host_register = cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: u32);
    /// Unpins host memory.
    host_unregister = cuMemHostUnregister(start: *mut c_void);
    /// Copies to the host in stream order.
    copy_to_host = cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle);
    /// Copies from the host in stream order.
    copy_from_host = cuMemcpyHtoDAsync_v2(to: DevicePtr, from: *const c_void, bytes: usize, stream: Handle);
    /// Closes memory that was opened by another process's handle.
    ipc_close = cuIpcCloseMemHandle(address: DevicePtr);
    /// Destroys an import of another API's memory.
    external_destroy = cuDestroyExternalMemory(memory: Handle);
    /// Destroys a green context.
    green_destroy = cuGreenCtxDestroy(green: Handle);
    /// Destroys a stream.
    stream_destroy = cuStreamDestroy_v2(stream: Handle);
    /// Returns a function's name.
    function_name = cuFuncGetName(name: *mut *const core::ffi::c_char, function: Handle);
    /// Returns a kernel's name.
    kernel_name = cuKernelGetName(name: *mut *const core::ffi::c_char, kernel: Handle);
    /// Returns an attribute of a function.
    function_attribute = cuFuncGetAttribute(value: *mut i32, attribute: i32, function: Handle);
    /// Returns an attribute of a kernel.
    kernel_attribute = cuKernelGetAttribute(value: *mut i32, attribute: i32, kernel: Handle, device: Device);
    /// Destroys an instantiated graph.
    graph_exec_destroy = cuGraphExecDestroy(exec: Handle);
    /// Returns the nodes of a graph, or their number.
    graph_nodes = cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    /// Returns the kind of a node.
    node_type = cuGraphNodeGetType(node: Handle, kind: *mut i32);
    /// Returns the parameters of a memory node.
    node_allocation = cuGraphMemAllocNodeGetParams(node: Handle, parameters: *mut cuda::AllocNodeParams);
    /// Returns the parameters of a kernel node.
    node_kernel = cuGraphKernelNodeGetParams_v2(node: Handle, parameters: *mut cuda::KernelNodeParams);
    /// Returns graph memory that no graph uses to the device.
    trim_graphs = cuDeviceGraphMemTrim(device: Device);
    /// Returns the graph of a child graph node.
    node_child = cuGraphChildGraphNodeGetGraph(node: Handle, graph: *mut Handle);
    /// Returns whether a stream is being captured.
    is_capturing = cuStreamIsCapturing(stream: Handle, status: *mut i32);
    /// Returns a stream's number, which no other stream of the process has had.
    stream_id = cuStreamGetId(stream: Handle, id: *mut u64);
    /// Returns a stream's context.
    stream_context = cuStreamGetCtx(stream: Handle, context: *mut Handle);
    /// Waits for a stream.
    stream_synchronize = cuStreamSynchronize(stream: Handle);
    /// Returns whether all work in a stream has finished.
    stream_query = cuStreamQuery(stream: Handle);
    /// Creates an event.
    event_create = cuEventCreate(event: *mut Handle, flags: u32);
    /// Records an event in a stream.
    event_record = cuEventRecord(event: Handle, stream: Handle);
    /// Returns whether an event has finished.
    event_query = cuEventQuery(event: Handle);
    /// Returns the time between two finished events in milliseconds.
    event_elapsed = cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle);
    /// Pushes a context, which becomes current.
    context_push = cuCtxPushCurrent_v2(context: Handle);
    /// Pops the current context.
    context_pop = cuCtxPopCurrent_v2(context: *mut Handle);
    /// Exchanges the thread's capture mode.
    exchange_capture_mode = cuThreadExchangeStreamCaptureMode(mode: *mut i32);
    /// Returns the current context.
    context_current = cuCtxGetCurrent(context: *mut Handle);
}

/// Relaxed capture mode of this thread: while this lives, calls of the library do not invalidate a capture. Holds the previous mode.
pub struct CaptureRelaxed(i32);

impl CaptureRelaxed {
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`
    const RELAXED: i32 = 2;

    /// Enters the relaxed mode.
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

/// Returns an attribute of a device; 0 if the driver does not report it.
pub fn attribute_of(device: Device, attribute: i32) -> i32 {
    let mut value = 0;
    // SAFETY: the driver writes one integer.
    if unsafe { device_attribute(&raw mut value, attribute, device) } == cuda::SUCCESS { value } else { 0 }
}

/// Destroys an object that was just created, before the program has seen it, and clears the program's handle.
///
/// # Safety
/// `handle` holds the new object's handle, which `destroy` accepts.
pub unsafe fn discard(handle: *mut Handle, destroy: unsafe fn(Handle) -> Status) {
    // SAFETY: the caller's promise.
    unsafe {
        destroy(*handle);
        *handle = core::ptr::null_mut();
    }
}

/// Returns the calling thread's current context; null if there is none.
#[inline]
pub fn current_context() -> Handle {
    let mut context = core::ptr::null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { context_current(&raw mut context) };
    context
}

/// Runs `work` with a context current.
///
/// # Errors
/// The driver does not make the context current: its status. Then `work` did not run.
///
/// # Safety
/// The context lives.
pub unsafe fn in_context<T>(context: Handle, work: impl FnOnce() -> T) -> Result<T, Status> {
    if context == current_context() {
        return Ok(work());
    }
    let mut popped = core::ptr::null_mut();
    // SAFETY: the caller's promise; what was pushed is popped, and the driver writes one handle.
    unsafe {
        match context_push(context) {
            cuda::SUCCESS => {
                let result = work();
                context_pop(&raw mut popped);
                Ok(result)
            }
            refused => Err(refused),
        }
    }
}

/// Returns the context of a stream of the program's; null if there is none. The default streams belong to the current context.
pub fn context_of(stream: Handle) -> Handle {
    let mut context = core::ptr::null_mut();
    // SAFETY: the program's own stream; the driver writes one handle.
    if stream as usize <= cuda::PER_THREAD_STREAM as usize || unsafe { stream_context(stream, &raw mut context) } != cuda::SUCCESS {
        context = current_context();
    }
    context
}

/// Returns true if work in a stream of the program's is captured into a graph, or will be refused because of a capture.
#[inline]
pub fn is_captured(stream: Handle) -> bool {
    let mut capturing = 0;
    // SAFETY: the program's own stream; the driver writes one integer.
    unsafe { is_capturing(stream, &raw mut capturing) != cuda::SUCCESS || capturing != 0 }
}

/// Creates an event with timing and without blocking waits. `None` if that fails.
///
/// # Safety
/// The context lives.
pub unsafe fn create_event(context: Handle) -> Option<Handle> {
    let mut event = core::ptr::null_mut();
    // SAFETY: the caller's promise; the driver writes one handle.
    let status = unsafe { in_context(context, || event_create(&raw mut event, 0)) };
    (status == Ok(cuda::SUCCESS)).then_some(event)
}

/// Returns the time from one finished event to another, in nanoseconds.
///
/// # Safety
/// Both are events of one context, which lives.
pub unsafe fn elapsed_ns(from: Handle, to: Handle) -> Option<i64> {
    let mut milliseconds = 0f32;
    // SAFETY: the caller's promise; the driver writes one number.
    let status = unsafe { event_elapsed(&raw mut milliseconds, from, to) };
    (status == cuda::SUCCESS).then_some((f64::from(milliseconds) * 1e6) as i64)
}

calls! { Nvml, nvml::FUNCTION_NOT_FOUND;
    /// Initialises NVML, which counts the calls.
    nvml_init = nvmlInit_v2();
    /// Returns a device by UUID.
    nvml_by_uuid = nvmlDeviceGetHandleByUUID(uuid: *const core::ffi::c_char, device: *mut Handle);
    /// Returns a device's UUID.
    nvml_uuid = nvmlDeviceGetUUID(device: Handle, uuid: *mut core::ffi::c_char, length: u32);
    /// Returns a device's index in NVML's order.
    nvml_index = nvmlDeviceGetIndex(device: Handle, index: *mut u32);
    /// Returns values by identifier.
    nvml_fields = nvmlDeviceGetFieldValues(device: Handle, count: i32, values: *mut nvml::FieldValue);
    /// Returns the enforced power limit in milliwatts.
    nvml_power_limit = nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: *mut u32);
    /// Returns the default power limit in milliwatts.
    nvml_usual_power_limit = nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: *mut u32);
    /// Returns a device's utilization.
    nvml_utilization = nvmlDeviceGetUtilizationRates(device: Handle, rates: *mut nvml::UtilizationRates);
    /// Returns each process's utilization since a time.
    nvml_process_utilization = nvmlDeviceGetProcessUtilization(
        device: Handle,
        samples: *mut nvml::UtilizationSample,
        count: *mut u32,
        since: u64
    );
    /// Lists the processes with a compute context.
    nvml_compute_processes = nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut u32, list: *mut nvml::Process);
    /// Lists the processes with a compute context, on drivers before 510.
    nvml_compute_processes_v2 = nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: *mut u32, list: *mut nvml::Process);
}
