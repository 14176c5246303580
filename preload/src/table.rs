//! Every entry point that we stand in for, once.
//!
//! A line is `library handler => (arguments): symbols;`. The handler gets the driver's own function first, then the arguments. A new
//! entry point is one line here and its function. `[call]` before the colon is what a trace records of it ([`trace::call`]): it
//! names the arguments, and `SYMBOL` is the symbol's name.

use core::ffi::{CStr, c_char, c_void};

use vgpu_region::trace::Direction;

use crate::compute::shapes::{Copy2d, Copy2dV1, Copy3d, Copy3dV1, Operation};
use crate::cuda::{
    AllocationProp, Array3dDescriptor, ArrayDescriptor, Device, DevicePtr, Handle, KernelNodeParams, LaunchConfig, LaunchParams, Location,
    Status,
};
use crate::memory::array_v1::{Descriptor, Descriptor3d};
use crate::memory::keepers::MapInfo;
use crate::memory::shared::{IpcHandle, RestoreArgs};
use crate::nvml::sys::{Memory, MemoryV2, Process, ProcessDetails, ProcessV1, UtilizationRates, UtilizationSample, Utilizations};
use crate::trace::call::*;
use crate::{compute, driver, intercept, memory, nvml, session, trace};

/// Which library a symbol belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The CUDA driver.
    Cuda = 0,
    /// NVML.
    Nvml = 1,
}

impl Library {
    /// The name that programs load it by.
    pub const fn soname(self) -> &'static CStr {
        match self {
            Self::Cuda => c"libcuda.so.1",
            Self::Nvml => c"libnvidia-ml.so.1",
        }
    }

    /// Where it is when a front has taken that name.
    pub const fn beside(self) -> &'static CStr {
        match self {
            Self::Cuda => vgpu_region::paths::DRIVER_CUDA_C,
            Self::Nvml => vgpu_region::paths::DRIVER_NVML_C,
        }
    }

    /// What a function answers that the driver lacks.
    const fn missing(self) -> Status {
        match self {
            Self::Cuda => crate::cuda::NOT_FOUND,
            Self::Nvml => nvml::sys::FUNCTION_NOT_FOUND,
        }
    }
}

macro_rules! hooks {
    ($($library:ident $handler:path => $arguments:tt $([$trace:expr])?: $($symbol:ident),+;)*) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Entry { $($($symbol,)+)* Count }

        /// How many entry points there are.
        pub const COUNT: usize = Entry::Count as usize;

        /// Their names, each zero-terminated, in one text: a table of pointers would have to be relocated in every process.
        pub static NAMES: &str = concat!($($(stringify!($symbol), "\0",)+)*);

        /// Our own function for an entry.
        pub fn address(entry: usize) -> *mut c_void {
            $($(if entry == Entry::$symbol as usize { return $symbol as *mut c_void; })+)*
            core::ptr::null_mut()
        }

        /// What stands in for the driver's own function while it is traced; null where nothing is recorded of it.
        pub fn recorder(entry: usize) -> *mut c_void {
            $(recorders!(entry, $arguments, [$($trace)?], $($symbol),+);)*
            core::ptr::null_mut()
        }

        static LIBRARIES: [Library; COUNT] = [$($({ _ = Entry::$symbol; Library::$library },)+)*];

        $($(hook!($library, $symbol, $handler, $arguments);)+)*
    };
}

macro_rules! hook {
    ($library:ident, $symbol:ident, $handler:path, ($($argument:ident: $type:ty),*)) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> Status {
            let Some(real) = driver::real(Entry::$symbol as usize) else { return Library::$library.missing() };
            // SAFETY: the driver's function of that name has that signature; the arguments are the program's own.
            unsafe {
                let real = core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Status>(real);
                $handler(real, $($argument),*)
            }
        }
    };
}

/// Gives its recorder if the entry is one of these.
macro_rules! recorders {
    ($entry:ident, $arguments:tt, [], $($symbol:ident),+) => {};
    ($entry:ident, $arguments:tt, [$trace:expr], $($symbol:ident),+) => { $(recorder!($entry, $symbol, $arguments, $trace);)+ };
}

macro_rules! recorder {
    ($entry:ident, $symbol:ident, ($($argument:ident: $type:ty),*), $trace:expr) => {
        if $entry == Entry::$symbol as usize {
            unsafe extern "C" fn recorder($($argument: $type),*) -> Status {
                const ENTRY: usize = Entry::$symbol as usize;
                #[allow(dead_code)]
                const SYMBOL: &str = stringify!($symbol);
                let Some(native) = driver::native(ENTRY) else { return Library::Cuda.missing() };
                // SAFETY: the driver's function of that name has that signature; the arguments are the program's own.
                unsafe {
                    let native = core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Status>(native);
                    let pending = trace::begin(ENTRY, $trace);
                    let status = native($($argument),*);
                    trace::end(pending, status);
                    status
                }
            }
            return recorder as *mut c_void;
        }
    };
}

/// An entry's name.
pub fn name(entry: usize) -> &'static CStr {
    // SAFETY: the names are terminated.
    unsafe { CStr::from_ptr(intercept::names::name(entry)) }
}

/// Which library an entry belongs to.
pub fn library(entry: usize) -> Library {
    LIBRARIES.get(entry).copied().unwrap_or(Library::Cuda)
}

hooks! {
    // Getting here.
    Cuda intercept::proc_address::v1 => (symbol: *const c_char, function: *mut *mut c_void, version: i32, flags: u64) [count()]: cuGetProcAddress;
    Cuda intercept::proc_address::v2 => (symbol: *const c_char, function: *mut *mut c_void, version: i32, flags: u64, found: *mut i32) [count()]:
        cuGetProcAddress_v2;
    Cuda session::init => (flags: u32): cuInit;

    // Linear memory.
    Cuda memory::linear::allocate => (address: *mut DevicePtr, bytes: usize) [allocate(address, bytes)]: cuMemAlloc_v2;
    Cuda memory::linear::allocate_v1 => (address: *mut u32, bytes: u32) [allocate(core::ptr::null(), bytes as usize)]: cuMemAlloc;
    Cuda memory::linear::allocate_pitch => (address: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32) [allocate(address, width.saturating_mul(height))]:
        cuMemAllocPitch_v2;
    Cuda memory::linear::allocate_pitch_v1 => (address: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32): cuMemAllocPitch;
    Cuda memory::linear::allocate_managed => (address: *mut DevicePtr, bytes: usize, flags: u32) [allocate(address, bytes)]: cuMemAllocManaged;
    Cuda memory::shared::free => (address: DevicePtr) [free(address)]: cuMemFree_v2;
    Cuda memory::spill::moves::advise => (address: DevicePtr, bytes: usize, advice: i32, device: Device): cuMemAdvise;
    Cuda memory::spill::moves::advise_v2 => (address: DevicePtr, bytes: usize, advice: i32, location: Location): cuMemAdvise_v2;
    Cuda memory::linear::free_v1 => (address: u32) [free(address.into())]: cuMemFree;

    // Stream-ordered memory and pools.
    Cuda memory::ordered::allocate::<false> => (address: *mut DevicePtr, bytes: usize, stream: Handle) [allocate(address, bytes)]: cuMemAllocAsync;
    Cuda memory::ordered::allocate::<true> => (address: *mut DevicePtr, bytes: usize, stream: Handle) [allocate(address, bytes)]: cuMemAllocAsync_ptsz;
    Cuda memory::ordered::allocate_from::<false> => (address: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle) [allocate(address, bytes)]:
        cuMemAllocFromPoolAsync;
    Cuda memory::ordered::allocate_from::<true> => (address: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle) [allocate(address, bytes)]:
        cuMemAllocFromPoolAsync_ptsz;
    Cuda memory::ordered::free::<false> => (address: DevicePtr, stream: Handle) [free(address)]: cuMemFreeAsync;
    Cuda memory::ordered::free::<true> => (address: DevicePtr, stream: Handle) [free(address)]: cuMemFreeAsync_ptsz;
    Cuda memory::places::create => (pool: *mut Handle, properties: *const AllocationProp): cuMemPoolCreate;
    Cuda memory::pools::set_usual => (device: Device, pool: Handle): cuDeviceSetMemPool;
    Cuda memory::places::set => (location: *mut c_void, kind: i32, pool: Handle): cuMemSetMemPool;
    Cuda memory::pools::get => (pool: *mut Handle, device: Device): cuDeviceGetMemPool, cuDeviceGetDefaultMemPool;
    Cuda memory::pools::set_access => (pool: Handle, list: *const c_void, count: usize): cuMemPoolSetAccess;
    Cuda memory::places::get => (pool: *mut Handle, location: *mut Location, kind: i32): cuMemGetDefaultMemPool, cuMemGetMemPool;
    Cuda memory::pools::destroy => (pool: Handle): cuMemPoolDestroy;
    Cuda memory::pools::trim => (pool: Handle, keep: usize): cuMemPoolTrimTo;
    Cuda compute::waits::stream::<false> => (stream: Handle) [synchronize(stream)]: cuStreamSynchronize;
    Cuda compute::waits::stream::<true> => (stream: Handle) [synchronize(own(stream))]: cuStreamSynchronize_ptsz;
    Cuda compute::waits::event => (event: Handle) [synchronize(event)]: cuEventSynchronize;
    Cuda compute::waits::context_v2 => (context: Handle) [synchronize(context)]: cuCtxSynchronize_v2;
    Cuda compute::waits::context => () [synchronize(DEFAULT)]: cuCtxSynchronize;
    Cuda memory::capture::begin => (stream: Handle, mode: i32): cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz;
    Cuda memory::capture::begin_v1 => (stream: Handle): cuStreamBeginCapture, cuStreamBeginCapture_ptsz;
    Cuda memory::capture::begin_to_graph => (stream: Handle, graph: Handle, dependencies: *const Handle, edges: *const c_void, count: usize, mode: i32):
        cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz;
    Cuda memory::capture::end::<false> => (stream: Handle, graph: *mut Handle): cuStreamEndCapture;
    Cuda memory::capture::end::<true> => (stream: Handle, graph: *mut Handle): cuStreamEndCapture_ptsz;
    Cuda memory::pools::trim_graphs => (device: Device): cuDeviceGraphMemTrim;

    // Physical memory and its mappings.
    Cuda memory::physical::create => (handle: *mut u64, bytes: usize, properties: *const AllocationProp, flags: u64) [allocate(handle, bytes)]: cuMemCreate;
    Cuda memory::shared::release => (handle: u64) [free(handle)]: cuMemRelease;
    Cuda memory::physical::retain => (handle: *mut u64, address: *mut c_void): cuMemRetainAllocationHandle;
    Cuda memory::physical::map => (address: DevicePtr, bytes: usize, offset: usize, handle: u64, flags: u64): cuMemMap;
    Cuda memory::shared::unmap => (address: DevicePtr, bytes: usize): cuMemUnmap;

    // Memory that crosses the border of a process.
    Cuda memory::shared::export_physical => (shareable: *mut c_void, handle: u64, kind: i32, flags: u64): cuMemExportToShareableHandle;
    Cuda memory::shared::export_linear => (out: *mut c_void, address: DevicePtr): cuIpcGetMemHandle;
    Cuda memory::shared::export_range => (out: *mut c_void, address: DevicePtr, bytes: usize, kind: i32, flags: u64):
        cuMemGetHandleForAddressRange;
    Cuda memory::shared::import_physical => (handle: *mut u64, shareable: *mut c_void, kind: i32): cuMemImportFromShareableHandle;
    Cuda memory::shared::import_pool => (pool: *mut Handle, shareable: *mut c_void, kind: i32, flags: u64):
        cuMemPoolImportFromShareableHandle;
    Cuda memory::shared::import_pointer => (address: *mut DevicePtr, pool: Handle, data: *mut c_void): cuMemPoolImportPointer;
    Cuda memory::shared::import_linear => (address: *mut DevicePtr, handle: IpcHandle, flags: u32): cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2;
    Cuda memory::shared::import_external => (memory: *mut Handle, description: *const c_void): cuImportExternalMemory;
    Cuda memory::shared::restore => (pid: i32, arguments: *mut RestoreArgs): cuCheckpointProcessRestore;

    // What keeps physical memory besides handles and mappings.
    Cuda memory::keepers::map_array => (list: *mut MapInfo, count: u32, stream: Handle): cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz;
    Cuda memory::keepers::multicast_create => (handle: *mut u64, properties: *const c_void): cuMulticastCreate;
    Cuda memory::keepers::multicast_add => (object: u64, device: i32): cuMulticastAddDevice;
    Cuda memory::keepers::multicast_bind => (object: u64, offset: usize, handle: u64, handle_offset: usize, bytes: usize, flags: u64):
        cuMulticastBindMem;
    Cuda memory::keepers::multicast_bind_address => (object: u64, offset: usize, address: DevicePtr, bytes: usize, flags: u64):
        cuMulticastBindAddr;
    Cuda memory::keepers::multicast_unbind => (object: u64, device: i32, offset: usize, bytes: usize): cuMulticastUnbind;

    // Arrays.
    Cuda memory::array_v1::create => (array: *mut Handle, descriptor: *const Descriptor): cuArrayCreate;
    Cuda memory::array_v1::create_3d => (array: *mut Handle, descriptor: *const Descriptor3d): cuArray3DCreate;
    Cuda memory::array::create => (array: *mut Handle, descriptor: *const ArrayDescriptor): cuArrayCreate_v2;
    Cuda memory::array::create_3d => (array: *mut Handle, descriptor: *const Array3dDescriptor): cuArray3DCreate_v2;
    Cuda memory::array::create_mipmapped => (array: *mut Handle, descriptor: *const Array3dDescriptor, levels: u32): cuMipmappedArrayCreate;
    Cuda memory::keepers::array_destroy => (array: Handle): cuArrayDestroy, cuMipmappedArrayDestroy;

    // Graphs with memory nodes.
    Cuda memory::graph::instantiate => (exec: *mut Handle, graph: Handle, flags: u64): cuGraphInstantiateWithFlags;
    Cuda memory::graph::instantiate_v2 => (exec: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, size: usize):
        cuGraphInstantiate_v2, cuGraphInstantiate;
    Cuda memory::graph::instantiate_with => (exec: *mut Handle, graph: Handle, parameters: *mut c_void):
        cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz;
    Cuda memory::graph::upload => (exec: Handle, stream: Handle): cuGraphUpload, cuGraphUpload_ptsz;
    Cuda memory::graph::update => (exec: Handle, graph: Handle, result: *mut c_void): cuGraphExecUpdate_v2;
    Cuda memory::graph::update_v1 => (exec: Handle, graph: Handle, node: *mut Handle, result: *mut i32): cuGraphExecUpdate;
    Cuda memory::graph::destroy => (exec: Handle): cuGraphExecDestroy;
    Cuda memory::graph::kernels::add::<2> => (node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *const KernelNodeParams):
        cuGraphAddKernelNode_v2;
    Cuda memory::graph::kernels::add::<1> => (node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *const KernelNodeParams):
        cuGraphAddKernelNode;
    Cuda memory::graph::kernels::add_any => (node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *const c_void): cuGraphAddNode;
    Cuda memory::graph::kernels::add_any_v2 => (node: *mut Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize, parameters: *const c_void):
        cuGraphAddNode_v2;
    Cuda memory::graph::kernels::set::<2> => (node: Handle, parameters: *const KernelNodeParams): cuGraphKernelNodeSetParams_v2;
    Cuda memory::graph::kernels::set::<1> => (node: Handle, parameters: *const KernelNodeParams): cuGraphKernelNodeSetParams;
    Cuda memory::graph::kernels::set_any => (node: Handle, parameters: *const c_void): cuGraphNodeSetParams;
    Cuda memory::graph::kernels::exchange::<2> => (exec: Handle, node: Handle, parameters: *const KernelNodeParams):
        cuGraphExecKernelNodeSetParams_v2;
    Cuda memory::graph::kernels::exchange::<1> => (exec: Handle, node: Handle, parameters: *const KernelNodeParams):
        cuGraphExecKernelNodeSetParams;
    Cuda memory::graph::kernels::exchange_any => (exec: Handle, node: Handle, parameters: *const c_void): cuGraphExecNodeSetParams;

    // What takes memory without an allocation call.
    Cuda memory::context::retain_primary => (context: *mut Handle, device: Device): cuDevicePrimaryCtxRetain;
    Cuda compute::hooks::primary_release => (device: Device) [end_contexts()]: cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxRelease,
        cuDevicePrimaryCtxReset;
    Cuda memory::context::create => (context: *mut Handle, flags: u32, device: Device): cuCtxCreate_v2, cuCtxCreate,
        cuGLCtxCreate_v2, cuGLCtxCreate;
    Cuda memory::context::create_v3 => (context: *mut Handle, parameters: *mut c_void, count: i32, flags: u32, device: Device): cuCtxCreate_v3;
    Cuda memory::context::create_v4 => (context: *mut Handle, parameters: *mut c_void, flags: u32, device: Device): cuCtxCreate_v4;
    Cuda compute::hooks::context_destroy => (context: Handle) [end_contexts()]: cuCtxDestroy_v2, cuCtxDestroy;
    Cuda memory::other_contexts::detach => (context: Handle) [end_contexts()]: cuCtxDetach;
    Cuda memory::other_contexts::create_vdpau => (context: *mut Handle, flags: u32, device: Device, vdpau: u32, functions: *mut c_void):
        cuVDPAUCtxCreate_v2, cuVDPAUCtxCreate;
    Cuda memory::other_contexts::create_green => (green: *mut Handle, description: Handle, device: Device, flags: u32): cuGreenCtxCreate;
    Cuda memory::other_contexts::destroy_green => (green: Handle) [end_contexts()]: cuGreenCtxDestroy;
    Cuda memory::other_contexts::green_stream => (stream: *mut Handle, green: Handle, flags: u32, priority: i32): cuGreenCtxStreamCreate;
    Cuda memory::context::set_limit => (limit: i32, value: usize): cuCtxSetLimit;
    Cuda memory::module::load_file => (module: *mut Handle, path: *const c_char): cuModuleLoad;
    Cuda memory::module::load_data => (module: *mut Handle, data: *const c_void): cuModuleLoadData, cuModuleLoadFatBinary;
    Cuda memory::module::load_data_ex => (module: *mut Handle, data: *const c_void, count: u32, options: *mut i32, values: *mut *mut c_void):
        cuModuleLoadDataEx;
    Cuda memory::module::unload_handle => (handle: Handle) [unload()]: cuModuleUnload;
    Cuda memory::library::load_data => (library: *mut Handle, code: *const c_void, options: *mut i32, values: *mut *mut c_void, count: u32,
        library_options: *mut i32, library_values: *mut *mut c_void, library_count: u32): cuLibraryLoadData;
    Cuda memory::library::load_file => (library: *mut Handle, path: *const c_char, options: *mut i32, values: *mut *mut c_void, count: u32,
        library_options: *mut i32, library_values: *mut *mut c_void, library_count: u32): cuLibraryLoadFromFile;
    Cuda memory::library::kernel => (kernel: *mut Handle, library: Handle, name: *const c_char): cuLibraryGetKernel;
    Cuda memory::library::kernels => (list: *mut Handle, count: u32, library: Handle): cuLibraryEnumerateKernels;
    Cuda memory::library::unload => (library: Handle) [unload()]: cuLibraryUnload;
    Cuda memory::library::module_of => (module: *mut Handle, library: Handle): cuLibraryGetModule;
    Cuda memory::library::function_of => (function: *mut Handle, kernel: Handle): cuKernelGetFunction;
    Cuda memory::library::global => (address: *mut DevicePtr, bytes: *mut usize, library: Handle, name: *const c_char):
        cuLibraryGetGlobal, cuLibraryGetManaged;
    Cuda memory::library::function => (function: *mut Handle, module: Handle, name: *const c_char): cuModuleGetFunction;
    Cuda memory::library::load_function => (function: Handle): cuFuncLoad;
    Cuda memory::library::module_global => (address: *mut DevicePtr, bytes: *mut usize, module: Handle, name: *const c_char):
        cuModuleGetGlobal_v2, cuModuleGetGlobal;
    Cuda memory::module::small_create => (stream: *mut Handle, flags: u32): cuStreamCreate;
    Cuda memory::module::small_create_with_priority => (stream: *mut Handle, flags: u32, priority: i32): cuStreamCreateWithPriority;

    // What takes GPU time.
    Cuda compute::hooks::launch_kernel::<false> => (function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void) [kernel(stream, function)]: cuLaunchKernel;
    Cuda compute::hooks::launch_kernel::<true> => (function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void) [kernel(own(stream), function)]: cuLaunchKernel_ptsz;
    Cuda compute::hooks::launch_ex::<false> => (config: *const LaunchConfig, function: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void) [kernel_by(config, function, |stream| stream)]: cuLaunchKernelEx;
    Cuda compute::hooks::launch_ex::<true> => (config: *const LaunchConfig, function: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void) [kernel_by(config, function, own)]: cuLaunchKernelEx_ptsz;
    Cuda compute::hooks::cooperative::<false> => (function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle,
        parameters: *mut *mut c_void) [kernel(stream, function)]: cuLaunchCooperativeKernel;
    Cuda compute::hooks::cooperative::<true> => (function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle,
        parameters: *mut *mut c_void) [kernel(own(stream), function)]: cuLaunchCooperativeKernel_ptsz;
    Cuda compute::hooks::cooperative_multi_device => (list: *mut LaunchParams, count: u32, flags: u32) [kernels(list, count)]: cuLaunchCooperativeKernelMultiDevice;
    Cuda compute::hooks::launch => (function: Handle) [kernel(DEFAULT, function)]: cuLaunch;
    Cuda compute::hooks::launch_grid => (function: Handle, width: i32, height: i32) [kernel(DEFAULT, function)]: cuLaunchGrid;
    Cuda compute::hooks::launch_grid_async => (function: Handle, width: i32, height: i32, stream: Handle) [kernel(stream, function)]: cuLaunchGridAsync;
    Cuda compute::hooks::graph_launch::<false> => (exec: Handle, stream: Handle) [graph(stream, exec)]: cuGraphLaunch;
    Cuda compute::hooks::graph_launch::<true> => (exec: Handle, stream: Handle) [graph(own(stream), exec)]: cuGraphLaunch_ptsz;
    Cuda compute::hooks::copy_device::<false> => (to: u64, from: u64, bytes: usize, stream: Handle) [copy(Direction::Within, stream, bytes)]: cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync;
    Cuda compute::hooks::copy_device::<true> => (to: u64, from: u64, bytes: usize, stream: Handle) [copy(Direction::Within, own(stream), bytes)]: cuMemcpyDtoDAsync_v2_ptsz;
    Cuda compute::hooks::set::<false> => (address: DevicePtr, value: u32, count: usize, stream: Handle) [fill(stream, count)]: cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async;
    Cuda compute::hooks::set::<true> => (address: DevicePtr, value: u32, count: usize, stream: Handle) [fill(own(stream), count)]: cuMemsetD8Async_ptsz, cuMemsetD16Async_ptsz, cuMemsetD32Async_ptsz;

    // What comes between launches.
    Cuda compute::hooks::copy_host::<false> => (to: u64, from: u64, bytes: usize, stream: Handle) [copy_by(SYMBOL, stream, bytes)]: cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync, cuMemcpyDtoHAsync;
    Cuda compute::hooks::copy_host::<true> => (to: u64, from: u64, bytes: usize, stream: Handle) [copy_by(SYMBOL, own(stream), bytes)]: cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyDtoHAsync_v2_ptsz;
    Cuda compute::hooks::wait_event::<false> => (stream: Handle, event: Handle, flags: u32): cuStreamWaitEvent;
    Cuda compute::hooks::wait_event::<true> => (stream: Handle, event: Handle, flags: u32): cuStreamWaitEvent_ptsz;
    Cuda compute::hooks::wait_value::<false> => (stream: Handle, address: DevicePtr, value: u64, flags: u32): cuStreamWaitValue32_v2, cuStreamWaitValue64_v2,
        cuStreamWaitValue32, cuStreamWaitValue64;
    Cuda compute::hooks::wait_value::<true> => (stream: Handle, address: DevicePtr, value: u64, flags: u32): cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue64_v2_ptsz,
        cuStreamWaitValue32_ptsz, cuStreamWaitValue64_ptsz;
    Cuda compute::hooks::host_function::<false> => (stream: Handle, function: *mut c_void, data: *mut c_void): cuLaunchHostFunc;
    Cuda compute::hooks::host_function::<true> => (stream: Handle, function: *mut c_void, data: *mut c_void): cuLaunchHostFunc_ptsz;
    Cuda compute::hooks::stream_destroy => (stream: Handle): cuStreamDestroy_v2, cuStreamDestroy;

    // Copies and fills of every other shape.
    Cuda compute::copies::device::<false> => (to: u64, from: u64, bytes: usize) [copy(Direction::Within, DEFAULT, bytes)]: cuMemcpyDtoD_v2, cuMemcpyDtoD;
    Cuda compute::copies::device::<true> => (to: u64, from: u64, bytes: usize) [copy(Direction::Within, own(DEFAULT), bytes)]: cuMemcpyDtoD_v2_ptds;
    Cuda compute::copies::host::<false> => (to: u64, from: u64, bytes: usize) [copy_by(SYMBOL, DEFAULT, bytes)]: cuMemcpyHtoD_v2, cuMemcpyDtoH_v2, cuMemcpyHtoD, cuMemcpyDtoH;
    Cuda compute::copies::host::<true> => (to: u64, from: u64, bytes: usize) [copy_by(SYMBOL, own(DEFAULT), bytes)]: cuMemcpyHtoD_v2_ptds, cuMemcpyDtoH_v2_ptds;
    Cuda compute::copies::unified::<false> => (to: u64, from: u64, bytes: usize) [copy(Direction::ByAddress, DEFAULT, bytes)]: cuMemcpy;
    Cuda compute::copies::unified::<true> => (to: u64, from: u64, bytes: usize) [copy(Direction::ByAddress, own(DEFAULT), bytes)]: cuMemcpy_ptds;
    Cuda compute::copies::unified_async::<false> => (to: u64, from: u64, bytes: usize, stream: Handle) [copy(Direction::ByAddress, stream, bytes)]: cuMemcpyAsync;
    Cuda compute::copies::unified_async::<true> => (to: u64, from: u64, bytes: usize, stream: Handle) [copy(Direction::ByAddress, own(stream), bytes)]: cuMemcpyAsync_ptsz;
    Cuda compute::copies::peer::<false> => (to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) [copy(Direction::Within, DEFAULT, bytes)]: cuMemcpyPeer;
    Cuda compute::copies::peer::<true> => (to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) [copy(Direction::Within, own(DEFAULT), bytes)]: cuMemcpyPeer_ptds;
    Cuda compute::copies::peer_async::<false> => (to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) [copy(Direction::Within, stream, bytes)]: cuMemcpyPeerAsync;
    Cuda compute::copies::peer_async::<true> => (to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) [copy(Direction::Within, own(stream), bytes)]: cuMemcpyPeerAsync_ptsz;
    Cuda compute::copies::array_to_array::<false> => (to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize) [copy(Direction::Within, DEFAULT, bytes)]: cuMemcpyAtoA_v2, cuMemcpyAtoA;
    Cuda compute::copies::array_to_array::<true> => (to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize) [copy(Direction::Within, own(DEFAULT), bytes)]: cuMemcpyAtoA_v2_ptds;
    Cuda compute::copies::array::<false> => (first: u64, second: u64, third: u64, bytes: usize) [copy(Direction::Within, DEFAULT, bytes)]: cuMemcpyAtoD_v2, cuMemcpyDtoA_v2, cuMemcpyAtoD, cuMemcpyDtoA;
    Cuda compute::copies::array::<true> => (first: u64, second: u64, third: u64, bytes: usize) [copy(Direction::Within, own(DEFAULT), bytes)]: cuMemcpyAtoD_v2_ptds, cuMemcpyDtoA_v2_ptds;
    Cuda compute::copies::array_host::<false> => (first: u64, second: u64, third: u64, bytes: usize) [copy_by(SYMBOL, DEFAULT, bytes)]: cuMemcpyAtoH_v2, cuMemcpyHtoA_v2, cuMemcpyAtoH, cuMemcpyHtoA;
    Cuda compute::copies::array_host::<true> => (first: u64, second: u64, third: u64, bytes: usize) [copy_by(SYMBOL, own(DEFAULT), bytes)]: cuMemcpyAtoH_v2_ptds, cuMemcpyHtoA_v2_ptds;
    Cuda compute::copies::array_host_async::<false> => (first: u64, second: u64, third: u64, bytes: usize, stream: Handle) [copy_by(SYMBOL, stream, bytes)]: cuMemcpyAtoHAsync_v2, cuMemcpyHtoAAsync_v2, cuMemcpyAtoHAsync, cuMemcpyHtoAAsync;
    Cuda compute::copies::array_host_async::<true> => (first: u64, second: u64, third: u64, bytes: usize, stream: Handle) [copy_by(SYMBOL, own(stream), bytes)]: cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyHtoAAsync_v2_ptsz;
    Cuda compute::shapes::described::<false, Copy2d> => (what: *const Copy2d) [copy_described(DEFAULT, what)]: cuMemcpy2D_v2, cuMemcpy2DUnaligned_v2;
    Cuda compute::shapes::described::<true, Copy2d> => (what: *const Copy2d) [copy_described(own(DEFAULT), what)]: cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2_ptds;
    Cuda compute::shapes::described_async::<false, Copy2d> => (what: *const Copy2d, stream: Handle) [copy_described(stream, what)]: cuMemcpy2DAsync_v2;
    Cuda compute::shapes::described_async::<true, Copy2d> => (what: *const Copy2d, stream: Handle) [copy_described(own(stream), what)]: cuMemcpy2DAsync_v2_ptsz;
    Cuda compute::shapes::described::<false, Copy3d> => (what: *const Copy3d) [copy_described(DEFAULT, what)]: cuMemcpy3D_v2;
    Cuda compute::shapes::described::<true, Copy3d> => (what: *const Copy3d) [copy_described(own(DEFAULT), what)]: cuMemcpy3D_v2_ptds;
    Cuda compute::shapes::described::<false, Copy3d> => (what: *const Copy3d) [copy_described(DEFAULT, what)]: cuMemcpy3DPeer;
    Cuda compute::shapes::described::<true, Copy3d> => (what: *const Copy3d) [copy_described(own(DEFAULT), what)]: cuMemcpy3DPeer_ptds;
    Cuda compute::shapes::described_async::<false, Copy3d> => (what: *const Copy3d, stream: Handle) [copy_described(stream, what)]: cuMemcpy3DAsync_v2;
    Cuda compute::shapes::described_async::<true, Copy3d> => (what: *const Copy3d, stream: Handle) [copy_described(own(stream), what)]: cuMemcpy3DAsync_v2_ptsz;
    Cuda compute::shapes::described_async::<false, Copy3d> => (what: *const Copy3d, stream: Handle) [copy_described(stream, what)]: cuMemcpy3DPeerAsync;
    Cuda compute::shapes::described_async::<true, Copy3d> => (what: *const Copy3d, stream: Handle) [copy_described(own(stream), what)]: cuMemcpy3DPeerAsync_ptsz;
    Cuda compute::shapes::described::<false, Copy2dV1> => (what: *const Copy2dV1) [copy_described(DEFAULT, what)]: cuMemcpy2D, cuMemcpy2DUnaligned;
    Cuda compute::shapes::described_async::<false, Copy2dV1> => (what: *const Copy2dV1, stream: Handle) [copy_described(stream, what)]: cuMemcpy2DAsync;
    Cuda compute::shapes::described::<false, Copy3dV1> => (what: *const Copy3dV1) [copy_described(DEFAULT, what)]: cuMemcpy3D;
    Cuda compute::shapes::described_async::<false, Copy3dV1> => (what: *const Copy3dV1, stream: Handle) [copy_described(stream, what)]: cuMemcpy3DAsync;
    Cuda compute::shapes::batch_v1::<false> => (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize,
        attribute_count: usize, failed: *mut usize, stream: Handle) [copies(stream, sizes, count)]: cuMemcpyBatchAsync;
    Cuda compute::shapes::batch_v1::<true> => (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize,
        attribute_count: usize, failed: *mut usize, stream: Handle) [copies(own(stream), sizes, count)]: cuMemcpyBatchAsync_ptsz;
    Cuda compute::shapes::batch_v2::<false> => (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize,
        attribute_count: usize, stream: Handle) [copies(stream, sizes, count)]: cuMemcpyBatchAsync_v2;
    Cuda compute::shapes::batch_v2::<true> => (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize,
        attribute_count: usize, stream: Handle) [copies(own(stream), sizes, count)]: cuMemcpyBatchAsync_v2_ptsz;
    Cuda compute::shapes::batch_3d_v1::<false> => (count: usize, start: *mut Operation, failed: *mut usize, flags: u64, stream: Handle) [copy(Direction::ByAddress, stream, 0)]: cuMemcpy3DBatchAsync;
    Cuda compute::shapes::batch_3d_v1::<true> => (count: usize, start: *mut Operation, failed: *mut usize, flags: u64, stream: Handle) [copy(Direction::ByAddress, own(stream), 0)]: cuMemcpy3DBatchAsync_ptsz;
    Cuda compute::shapes::batch_3d_v2::<false> => (count: usize, start: *mut Operation, flags: u64, stream: Handle) [copy(Direction::ByAddress, stream, 0)]: cuMemcpy3DBatchAsync_v2;
    Cuda compute::shapes::batch_3d_v2::<true> => (count: usize, start: *mut Operation, flags: u64, stream: Handle) [copy(Direction::ByAddress, own(stream), 0)]: cuMemcpy3DBatchAsync_v2_ptsz;
    Cuda compute::copies::fill::<false> => (address: DevicePtr, value: u32, count: usize) [fill(DEFAULT, count)]: cuMemsetD8_v2, cuMemsetD16_v2, cuMemsetD32_v2, cuMemsetD8, cuMemsetD16, cuMemsetD32;
    Cuda compute::copies::fill::<true> => (address: DevicePtr, value: u32, count: usize) [fill(own(DEFAULT), count)]: cuMemsetD8_v2_ptds, cuMemsetD16_v2_ptds, cuMemsetD32_v2_ptds;
    Cuda compute::copies::fill_2d::<false> => (address: DevicePtr, pitch: usize, value: u32, width: usize, height: usize) [fill(DEFAULT, width.saturating_mul(height))]: cuMemsetD2D8_v2, cuMemsetD2D16_v2, cuMemsetD2D32_v2, cuMemsetD2D8, cuMemsetD2D16, cuMemsetD2D32;
    Cuda compute::copies::fill_2d::<true> => (address: DevicePtr, pitch: usize, value: u32, width: usize, height: usize) [fill(own(DEFAULT), width.saturating_mul(height))]: cuMemsetD2D8_v2_ptds, cuMemsetD2D16_v2_ptds, cuMemsetD2D32_v2_ptds;
    Cuda compute::copies::fill_2d_async::<false> => (address: DevicePtr, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) [fill(stream, width.saturating_mul(height))]: cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async;
    Cuda compute::copies::fill_2d_async::<true> => (address: DevicePtr, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) [fill(own(stream), width.saturating_mul(height))]: cuMemsetD2D8Async_ptsz, cuMemsetD2D16Async_ptsz, cuMemsetD2D32Async_ptsz;
    Cuda compute::copies::decompress::<false> => (parameters: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: Handle): cuMemBatchDecompressAsync;
    Cuda compute::copies::decompress::<true> => (parameters: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: Handle): cuMemBatchDecompressAsync_ptsz;
    Cuda compute::between::prefetch::<false> => (address: DevicePtr, bytes: usize, to: i32, stream: Handle): cuMemPrefetchAsync;
    Cuda compute::between::prefetch::<true> => (address: DevicePtr, bytes: usize, to: i32, stream: Handle): cuMemPrefetchAsync_ptsz;
    Cuda compute::between::prefetch_v2::<false> => (address: DevicePtr, bytes: usize, to: Location, flags: u32, stream: Handle): cuMemPrefetchAsync_v2;
    Cuda compute::between::prefetch_v2::<true> => (address: DevicePtr, bytes: usize, to: Location, flags: u32, stream: Handle): cuMemPrefetchAsync_v2_ptsz;
    Cuda compute::between::prefetch_batch::<false> => (addresses: *mut DevicePtr, sizes: *mut usize, count: usize, locations: *mut Location, indices: *mut usize,
        location_count: usize, flags: u64, stream: Handle): cuMemPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync;
    Cuda compute::between::prefetch_batch::<true> => (addresses: *mut DevicePtr, sizes: *mut usize, count: usize, locations: *mut Location, indices: *mut usize,
        location_count: usize, flags: u64, stream: Handle): cuMemPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync_ptsz;
    Cuda compute::between::batch_values::<false> => (stream: Handle, count: u32, parameters: *mut c_void, flags: u32): cuStreamBatchMemOp, cuStreamBatchMemOp_v2;
    Cuda compute::between::batch_values::<true> => (stream: Handle, count: u32, parameters: *mut c_void, flags: u32): cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp_v2_ptsz;
    Cuda compute::between::wait_semaphores::<false> => (semaphores: *const Handle, parameters: *const c_void, count: u32, stream: Handle): cuWaitExternalSemaphoresAsync;
    Cuda compute::between::wait_semaphores::<true> => (semaphores: *const Handle, parameters: *const c_void, count: u32, stream: Handle): cuWaitExternalSemaphoresAsync_ptsz;
    Cuda compute::between::callback::<false> => (stream: Handle, function: *mut c_void, data: *mut c_void, flags: u32): cuStreamAddCallback;
    Cuda compute::between::callback::<true> => (stream: Handle, function: *mut c_void, data: *mut c_void, flags: u32): cuStreamAddCallback_ptsz;

    // The view.
    Cuda memory::view::info => (free: *mut usize, total: *mut usize): cuMemGetInfo_v2;
    Cuda memory::view::info_v1 => (free: *mut u32, total: *mut u32): cuMemGetInfo;
    Cuda memory::view::device_total => (bytes: *mut usize, device: Device): cuDeviceTotalMem_v2;
    Cuda memory::view::device_total_v1 => (bytes: *mut u32, device: Device): cuDeviceTotalMem;
    Nvml nvml::memory::info => (device: Handle, memory: *mut Memory): nvmlDeviceGetMemoryInfo,
        nvmlDeviceGetConfComputeProtectedMemoryUsage;
    Nvml nvml::memory::info_v2 => (device: Handle, memory: *mut MemoryV2): nvmlDeviceGetMemoryInfo_v2;
    Nvml nvml::processes::list => (device: Handle, count: *mut u32, out: *mut ProcessV1): nvmlDeviceGetComputeRunningProcesses,
        nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses;
    Nvml nvml::processes::list => (device: Handle, count: *mut u32, out: *mut Process):
        nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3,
        nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3,
        nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses_v3;
    Nvml nvml::processes::list => (device: Handle, count: *mut u32, out: *mut u32): nvmlDeviceGetAccountingPids;
    Nvml nvml::processes::accounting => (device: Handle, pid: u32, statistics: *mut c_void): nvmlDeviceGetAccountingStats;
    Nvml nvml::processes::details => (device: Handle, out: *mut ProcessDetails): nvmlDeviceGetRunningProcessDetailList;
    Nvml nvml::processes::utilization => (device: Handle, out: *mut UtilizationSample, count: *mut u32, since: u64):
        nvmlDeviceGetProcessUtilization;
    Nvml nvml::processes::utilization_info => (device: Handle, out: *mut Utilizations): nvmlDeviceGetProcessesUtilizationInfo;
    Nvml nvml::utilization::rates => (device: Handle, rates: *mut UtilizationRates): nvmlDeviceGetUtilizationRates;
}
