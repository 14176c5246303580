//! The real CUDA driver and NVML.
//!
//! Nothing here takes a lock or waits: two threads that come first both look everything up and store the same answers, so a fork
//! in the middle leaves nothing behind.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU16, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::cuda::{Device, DevicePtr, Handle, Status};
use crate::intercept::{elf, names, symbols};
use crate::table::{self, COUNT, Library};

static REAL: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
/// The same, also while something else stands in for it in [`REAL`].
static NATIVE: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
static HANDLES: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// The real function behind a table entry, or what records its calls; `None` if the driver has none.
#[inline]
pub fn real(entry: usize) -> Option<*mut c_void> {
    let address = REAL.get(entry)?.load(Acquire);
    if address.is_null() { load_for(entry) } else { Some(address) }
}

/// The driver's own function behind a table entry, once it was loaded.
#[inline]
pub fn native(entry: usize) -> Option<*mut c_void> {
    let address = NATIVE.get(entry)?.load(Relaxed);
    (!address.is_null()).then_some(address)
}

/// Puts what records calls in the place of the driver's functions, or takes it away again. Either can be called at any time.
pub fn set_traced(traced: bool) {
    for (entry, real) in REAL.iter().enumerate() {
        let recorder = table::recorder(entry);
        if let Some(native) = native(entry).filter(|_| !recorder.is_null()) {
            real.store(if traced { recorder } else { native }, Release);
        }
    }
}

#[cold]
fn load_for(entry: usize) -> Option<*mut c_void> {
    let library = table::library(entry);
    if HANDLES.get(library as usize)?.load(Acquire).is_null() {
        load(library)?;
    }
    let address = REAL.get(entry)?.load(Acquire);
    (!address.is_null()).then_some(address)
}

fn dlopen(library: Library, flags: i32) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const core::ffi::c_char, i32) -> *mut c_void;
    // SAFETY: glibc's own dlopen, by its documented signature.
    unsafe {
        let dlopen = core::mem::transmute::<*mut c_void, Option<Dlopen>>(elf::in_libc(c"dlopen"));
        // Where a front has taken the driver's name, the driver itself lies beside us.
        let beside = library.beside();
        let name = if libc::access(beside.as_ptr(), libc::R_OK) == 0 { beside } else { library.soname() };
        dlopen.map_or(core::ptr::null_mut(), |dlopen| dlopen(name.as_ptr(), flags))
    }
}

/// Whether the library behind an entry is in the process already, or was loaded by us.
pub fn is_loaded(entry: usize) -> bool {
    !dlopen(table::library(entry), libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null()
}

fn load(library: Library) -> Option<*mut c_void> {
    let handle = dlopen(library, libc::RTLD_LAZY | libc::RTLD_LOCAL);
    if handle.is_null() {
        return None;
    }
    for (entry, real) in REAL.iter().enumerate().filter(|(entry, _)| table::library(*entry) == library) {
        // SAFETY: a handle just opened, and a C string. Searching by handle begins in that library, so our own export is not found.
        let address = unsafe { symbols::real_dlsym(handle, names::name(entry)) };
        if !address.is_null() {
            by_pointer::insert(address, entry);
            if let Some(native) = NATIVE.get(entry) {
                native.store(address, Relaxed);
            }
            // Another thread may have come first, and what records calls may be there by now.
            _ = real.compare_exchange(core::ptr::null_mut(), address, Release, Relaxed);
        }
    }
    HANDLES.get(library as usize)?.store(handle, Release);
    Some(handle)
}

/// A function of CUDA's driver by name, if that is in the process already; else null.
pub fn loaded(name: &CStr) -> *mut c_void {
    if dlopen(Library::Cuda, libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null() { core::ptr::null_mut() } else { look_up(Library::Cuda, name) }
}

/// A function of the driver by name, whether we stand in for it or not.
fn look_up(library: Library, name: &CStr) -> *mut c_void {
    let handle = HANDLES.get(library as usize).map_or(core::ptr::null_mut(), |handle| handle.load(Acquire));
    let handle = if handle.is_null() { load(library).unwrap_or(core::ptr::null_mut()) } else { handle };
    // SAFETY: a handle of ours and a C string.
    if handle.is_null() { handle } else { unsafe { symbols::real_dlsym(handle, name.as_ptr()) } }
}

/// From a driver function's address to our entry for it: what `cuGetProcAddress` needs.
pub mod by_pointer {
    use super::*;

    const SIZE: usize = 1024;
    static KEYS: [AtomicPtr<c_void>; SIZE] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SIZE];
    static ENTRIES: [AtomicU16; SIZE] = [const { AtomicU16::new(u16::MAX) }; SIZE];

    fn places(address: *mut c_void) -> impl Iterator<Item = usize> {
        let start = (address as usize >> 4).wrapping_mul(0x9e37_79b9) >> 8;
        (0..SIZE).map(move |step| start.wrapping_add(step) % SIZE)
    }

    pub(super) fn insert(address: *mut c_void, entry: usize) {
        for place in places(address) {
            let (Some(key), Some(value)) = (KEYS.get(place), ENTRIES.get(place)) else { return };
            match key.compare_exchange(core::ptr::null_mut(), address, Relaxed, Relaxed) {
                Ok(_) => return value.store(entry as u16, Release),
                Err(there) if there == address => return,
                Err(_) => {}
            }
        }
    }

    /// The entry whose real function is at `address`.
    pub fn find(address: *mut c_void) -> Option<usize> {
        for place in places(address) {
            match KEYS.get(place)?.load(Relaxed) {
                there if there.is_null() => return None,
                there if there == address => {
                    let entry = ENTRIES.get(place)?.load(Acquire);
                    return (entry != u16::MAX).then_some(usize::from(entry));
                }
                _ => {}
            }
        }
        None
    }
}

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

calls! { Cuda, crate::cuda::NOT_FOUND;
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
    array_create = cuArray3DCreate_v2(array: *mut Handle, descriptor: *const crate::cuda::Array3dDescriptor);
    /// Destroys an array.
    array_destroy = cuArrayDestroy(array: Handle);
    /// What an array needs, for one whose memory is mapped later.
    array_requirements = cuArrayGetMemoryRequirements(requirements: *mut crate::cuda::ArrayRequirements, array: Handle, device: Device);
    /// A mipmapped array.
    mipmap_create = cuMipmappedArrayCreate(array: *mut Handle, descriptor: *const crate::cuda::Array3dDescriptor, levels: u32);
    /// Destroys a mipmapped array.
    mipmap_destroy = cuMipmappedArrayDestroy(array: Handle);
    /// What a mipmapped array needs.
    mipmap_requirements = cuMipmappedArrayGetMemoryRequirements(requirements: *mut crate::cuda::ArrayRequirements, array: Handle, device: Device);
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
    node_allocation = cuGraphMemAllocNodeGetParams(node: Handle, parameters: *mut crate::cuda::AllocNodeParams);
    /// A kernel node's parameters.
    node_kernel = cuGraphKernelNodeGetParams_v2(node: Handle, parameters: *mut crate::cuda::KernelNodeParams);
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

calls! { Cuda, crate::cuda::NOT_FOUND;
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

/// [`allocate`] in the form that hooks are given the driver's functions in.
pub unsafe extern "C" fn allocate_pointer(address: *mut DevicePtr, bytes: usize) -> Status {
    // SAFETY: the caller's own arguments.
    unsafe { allocate(address, bytes) }
}

/// The calling thread's current context, or null.
#[inline]
pub fn current_context() -> Handle {
    let mut context = core::ptr::null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { context_current(&raw mut context) };
    context
}

calls! { Nvml, crate::nvml::sys::FUNCTION_NOT_FOUND;
    /// Starts NVML; counted.
    nvml_init = nvmlInit_v2();
    /// Device by UUID.
    nvml_by_uuid = nvmlDeviceGetHandleByUUID(uuid: *const core::ffi::c_char, device: *mut Handle);
    /// The device's UUID.
    nvml_uuid = nvmlDeviceGetUUID(device: Handle, uuid: *mut core::ffi::c_char, length: u32);
    /// The device's place in NVML's order.
    nvml_index = nvmlDeviceGetIndex(device: Handle, index: *mut u32);
    /// Values by number.
    nvml_fields = nvmlDeviceGetFieldValues(device: Handle, count: i32, values: *mut crate::nvml::sys::FieldValue);
    /// The power limit in force, in milliwatts.
    nvml_power_limit = nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: *mut u32);
    /// The power limit as it comes, in milliwatts.
    nvml_usual_power_limit = nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: *mut u32);
    /// How busy it is.
    nvml_utilization = nvmlDeviceGetUtilizationRates(device: Handle, rates: *mut crate::nvml::sys::UtilizationRates);
    /// What each process used since a time.
    nvml_process_utilization = nvmlDeviceGetProcessUtilization(
        device: Handle,
        samples: *mut crate::nvml::sys::UtilizationSample,
        count: *mut u32,
        since: u64
    );
    /// Processes with a compute context.
    nvml_compute_processes = nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut u32, list: *mut crate::nvml::sys::Process);
}
