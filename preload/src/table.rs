//! The table of intercepted functions: each entry point of the driver and of NVML that the library replaces, once.
//!
//! A row is `Library handler[passed] => (arguments) [trace]: symbols | per-thread symbols;`. A new entry point is one row here and, where
//! no handler fits, a function in `hooks`.
//!
//! * With `[passed]` the handler gets the program's call first, a closure that takes nothing and can be copied, and then these expressions.
//!   They may use the arguments, so functions that differ only in arguments that matter to the driver alone share a handler.
//! * Without `[passed]` the handler gets the driver's own function first, then all arguments: for those that change an argument.
//! * `[trace]` is the call of a function of `trace::call` that returns what a trace records. It may use the arguments, and `SYMBOL` for the
//!   symbol's name. A row without it is not recorded.
//! * The symbols behind `|` are the forms with `_ptsz` or `_ptds`, for which stream 0 is the thread's own default stream. `PER_THREAD` is
//!   true for these and false for the others, and `effective(stream)` is the stream that the call uses.
//!
//! The table is a macro that hands its rows to another one: `entry_points` takes the names, `trace` the recorders, `dispatch` the functions.

pub mod mapped;
pub mod nvml;

/// Hands all rows of the table to the macro `$consumer`.
macro_rules! entry_points {
    ($consumer:ident) => {
        $crate::table::mapped::and_mapped! { $consumer
            // Look-up and initialisation.
            Cuda proc_address::v1[address, symbol, function] => (symbol: *const c_char, function: *mut *mut c_void, version: i32, flags:
                u64) [count()]:
                cuGetProcAddress;
            Cuda proc_address::v2[address, symbol, function, found] => (symbol: *const c_char, function: *mut *mut c_void, version: i32,
                flags: u64, found: *mut i32) [count()]:
                cuGetProcAddress_v2;
            Cuda init::init[] => (flags: u32): cuInit;
            // Linear memory.
            Cuda alloc::allocate[address, bytes] => (address: *mut DevicePtr, bytes: usize) [allocate(address, bytes)]: cuMemAlloc_v2;
            Cuda alloc::allocate_v1[address, bytes.into(), || bytes.into()] => (address: *mut u32, bytes: u32) [allocate(core::ptr::null(),
                bytes as usize)]:
                cuMemAlloc;
            Cuda alloc::allocate_pitch[address, pitch, (width, height), element] => (address: *mut DevicePtr, pitch: *mut usize, width:
                usize, height: usize, element: u32) [allocate(address, width.saturating_mul(height))]:
                cuMemAllocPitch_v2;
            Cuda alloc::allocate_pitch_v1[address, pitch, width, height] => (address: *mut u32, pitch: *mut u32, width: u32, height: u32,
                element: u32):
                cuMemAllocPitch;
            Cuda alloc::allocate_managed[address, bytes] => (address: *mut DevicePtr, bytes: usize, flags: u32) [allocate(address, bytes)]:
                cuMemAllocManaged;
            Cuda ipc::free[address] => (address: DevicePtr) [free(address)]: cuMemFree_v2;
            Cuda host_moves::advise => (address: DevicePtr, bytes: usize, advice: i32, device: Device): cuMemAdvise;
            Cuda host_moves::advise_v2 => (address: DevicePtr, bytes: usize, advice: i32, location: Location): cuMemAdvise_v2;
            Cuda ipc::free[address.into()] => (address: u32) [free(address.into())]: cuMemFree;
            // Stream-ordered memory and pools.
            Cuda ordered::allocate[address, bytes, effective(stream)] => (address: *mut DevicePtr, bytes: usize, stream: Handle)
                [allocate(address, bytes)]:
                cuMemAllocAsync | cuMemAllocAsync_ptsz;
            Cuda ordered::allocate_from[address, bytes, pool, effective(stream)] => (address: *mut DevicePtr, bytes: usize, pool: Handle,
                stream: Handle) [allocate(address, bytes)]:
                cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz;
            Cuda ordered::free[address, effective(stream)] => (address: DevicePtr, stream: Handle) [free(address)]:
                cuMemFreeAsync | cuMemFreeAsync_ptsz;
            Cuda pools::create[pool, properties] => (pool: *mut Handle, properties: *const AllocationProp): cuMemPoolCreate;
            Cuda pools::set_usual[] => (device: Device, pool: Handle): cuDeviceSetMemPool;
            Cuda pools::set_usual[] => (location: *mut c_void, kind: i32, pool: Handle): cuMemSetMemPool;
            Cuda pools::get[pool, || Some(device)] => (pool: *mut Handle, device: Device): cuDeviceGetMemPool, cuDeviceGetDefaultMemPool;
            Cuda pools::set_access[pool] => (pool: Handle, list: *const c_void, count: usize): cuMemPoolSetAccess;
            Cuda pools::get_at[pool, location, kind] => (pool: *mut Handle, location: *mut Location, kind: i32):
                cuMemGetDefaultMemPool, cuMemGetMemPool;
            Cuda pools::destroy[pool] => (pool: Handle): cuMemPoolDestroy;
            Cuda pools::trim[] => (pool: Handle, keep: usize): cuMemPoolTrimTo;
            Cuda sync::stream[effective(stream)] => (stream: Handle) [synchronize(effective(stream))]:
                cuStreamSynchronize | cuStreamSynchronize_ptsz;
            Cuda sync::event[] => (event: Handle) [synchronize(event)]: cuEventSynchronize;
            Cuda sync::context[context] => (context: Handle) [synchronize(context)]: cuCtxSynchronize_v2;
            Cuda sync::current_context[] => () [synchronize(DEFAULT_STREAM)]: cuCtxSynchronize;
            Cuda capture::begin[stream] => (stream: Handle, mode: i32): cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz;
            Cuda capture::begin[stream] => (stream: Handle): cuStreamBeginCapture, cuStreamBeginCapture_ptsz;
            Cuda capture::begin[stream] => (stream: Handle, graph: Handle, dependencies: *const Handle, edges: *const c_void, count: usize,
                mode: i32):
                cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz;
            Cuda capture::begin[stream] => (stream: Handle, mode: i32, graph: Handle, callback: *mut c_void, data: *mut c_void):
                cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz;
            Cuda capture::begin_for_graphics[] => (stream: Handle, what: *mut c_void):
                cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig_ptsz;
            Cuda capture::end[stream, effective(stream)] => (stream: Handle, graph: *mut Handle):
                cuStreamEndCapture | cuStreamEndCapture_ptsz;
            Cuda pools::trim_graphs[] => (device: Device): cuDeviceGraphMemTrim;
            // Physical memory and its mappings.
            Cuda handles::create[handle, bytes, properties] => (handle: *mut u64, bytes: usize, properties: *const AllocationProp, flags: u64)
                [allocate(handle, bytes)]:
                cuMemCreate;
            Cuda handles::release => (handle: u64) [free(handle)]: cuMemRelease;
            Cuda handles::retain => (handle: *mut u64, address: *mut c_void): cuMemRetainAllocationHandle;
            Cuda handles::map => (address: DevicePtr, bytes: usize, offset: usize, handle: u64, flags: u64): cuMemMap;
            Cuda handles::unmap => (address: DevicePtr, bytes: usize): cuMemUnmap;
            Cuda handles::properties => (properties: *mut c_void, handle: u64): cuMemGetAllocationPropertiesFromHandle;
            // Memory that crosses the border of a process.
            Cuda handles::export => (shareable: *mut c_void, handle: u64, kind: i32, flags: u64):
                cuMemExportToShareableHandle;
            Cuda ipc::export_linear[address] => (out: *mut c_void, address: DevicePtr): cuIpcGetMemHandle;
            Cuda handles::export_range => (out: *mut c_void, address: DevicePtr, bytes: usize, kind: i32, flags: u64):
                cuMemGetHandleForAddressRange;
            Cuda ipc::import_physical[handle] => (handle: *mut u64, shareable: *mut c_void, kind: i32): cuMemImportFromShareableHandle;
            Cuda ipc::import[pool, driver::pool_destroy] => (pool: *mut Handle, shareable: *mut c_void, kind: i32, flags: u64):
                cuMemPoolImportFromShareableHandle;
            Cuda ipc::import[address, driver::free] => (address: *mut DevicePtr, pool: Handle, data: *mut c_void): cuMemPoolImportPointer;
            Cuda ipc::import[address, driver::ipc_close] => (address: *mut DevicePtr, handle: IpcHandle, flags: u32):
                cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2;
            Cuda ipc::import[memory, driver::external_destroy] => (memory: *mut Handle, description: *const c_void): cuImportExternalMemory;
            Cuda ipc::restore[arguments] => (pid: i32, arguments: *mut RestoreArgs): cuCheckpointProcessRestore;
            // What keeps physical memory besides handles and mappings.
            Cuda handles::map_array => (list: *mut MapInfo, count: u32, stream: Handle):
                cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz;
            Cuda multicast::create[handle] => (handle: *mut u64, properties: *const c_void): cuMulticastCreate;
            Cuda multicast::grow[] => (object: u64, device: i32): cuMulticastAddDevice;
            Cuda handles::bind => (object: u64, offset: usize, handle: u64, handle_offset: usize, bytes:
                usize, flags: u64):
                cuMulticastBindMem;
            Cuda handles::bind_range[object, offset as u64, address, bytes as u64] => (object: u64, offset: usize, address: DevicePtr, bytes:
                usize, flags: u64):
                cuMulticastBindAddr;
            Cuda handles::bind_v2 => (object: u64, device: Device, offset: usize, handle: u64, handle_offset:
                usize, bytes: usize, flags: u64):
                cuMulticastBindMem_v2;
            Cuda handles::bind_range[object, offset as u64, address, bytes as u64] => (object: u64, device: Device, offset: usize, address:
                DevicePtr, bytes: usize, flags: u64):
                cuMulticastBindAddr_v2;
            Cuda multicast::unbind[object, device, offset, bytes] => (object: u64, device: i32, offset: usize, bytes: usize):
                cuMulticastUnbind;
            Cuda multicast::grow[] => (endpoint: u32, what: *const c_void): cuLogicalEndpointCreate, cuLogicalEndpointAddDevice;
            Cuda multicast::grow[] => (endpoint: u32, shareable: *const c_void, kind: i32): cuLogicalEndpointImport;
            Cuda handles::bind_endpoint => (id: u32, device: Device, offset: usize, handle: u64, handle_offset:
                u64, bytes: u64, flags: u64):
                cuLogicalEndpointBindMem;
            Cuda handles::bind_range[endpoint(id), offset as u64, address, bytes] => (id: u32, device: Device, offset: usize, address:
                DevicePtr, bytes: u64, flags: u64):
                cuLogicalEndpointBindAddr;
            Cuda multicast::unbind[endpoint(id), device, offset, bytes] => (id: u32, device: Device, offset: usize, bytes: usize):
                cuLogicalEndpointUnbind;
            Cuda multicast::destroy_endpoint[id] => (id: u32): cuLogicalEndpointDestroy;
            // Arrays.
            Cuda arrays::create[array, descriptor, 0] => (array: *mut Handle, descriptor: *const Descriptor): cuArrayCreate;
            Cuda arrays::create[array, descriptor, 0] => (array: *mut Handle, descriptor: *const Descriptor3d): cuArray3DCreate;
            Cuda arrays::create[array, descriptor, 0] => (array: *mut Handle, descriptor: *const ArrayDescriptor): cuArrayCreate_v2;
            Cuda arrays::create[array, descriptor, 0] => (array: *mut Handle, descriptor: *const Array3dDescriptor): cuArray3DCreate_v2;
            Cuda arrays::create[array, descriptor, levels.max(1)] => (array: *mut Handle, descriptor: *const Array3dDescriptor, levels:
                u32):
                cuMipmappedArrayCreate;
            Cuda arrays::destroy[array] => (array: Handle): cuArrayDestroy, cuMipmappedArrayDestroy;
            // Graphs.
            Cuda graphs::instantiate[exec, graph] => (exec: *mut Handle, graph: Handle, flags: u64): cuGraphInstantiateWithFlags;
            Cuda graphs::instantiate[exec, graph] => (exec: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, size: usize):
                cuGraphInstantiate_v2, cuGraphInstantiate;
            Cuda graphs::instantiate[exec, graph] => (exec: *mut Handle, graph: Handle, parameters: *mut c_void):
                cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz;
            Cuda graphs::run[exec] => (exec: Handle, stream: Handle): cuGraphUpload, cuGraphUpload_ptsz;
            Cuda graphs::update[exec, graph] => (exec: Handle, graph: Handle, result: *mut c_void): cuGraphExecUpdate_v2;
            Cuda graphs::update[exec, graph] => (exec: Handle, graph: Handle, node: *mut Handle, result: *mut i32): cuGraphExecUpdate;
            Cuda graphs::destroy[exec] => (exec: Handle): cuGraphExecDestroy;
            Cuda graph_nodes::change[KernelNodeParams::function_of::<2>(parameters)] => (node: *mut Handle, graph: Handle, after: *const
                Handle, count: usize, parameters: *const KernelNodeParams):
                cuGraphAddKernelNode_v2;
            Cuda graph_nodes::change[KernelNodeParams::function_of::<1>(parameters)] => (node: *mut Handle, graph: Handle, after: *const
                Handle, count: usize, parameters: *const KernelNodeParams):
                cuGraphAddKernelNode;
            Cuda graph_nodes::change[KernelNodeParams::function_of_node(parameters)] => (node: *mut Handle, graph: Handle, after: *const
                Handle, count: usize, parameters: *const c_void):
                cuGraphAddNode;
            Cuda graph_nodes::change[KernelNodeParams::function_of_node(parameters)] => (node: *mut Handle, graph: Handle, after: *const
                Handle, edges: *const c_void, count: usize, parameters: *const c_void):
                cuGraphAddNode_v2, cuGraphAddNode_v3;
            Cuda graph_nodes::change[KernelNodeParams::function_of::<2>(parameters)] => (node: Handle, parameters: *const KernelNodeParams):
                cuGraphKernelNodeSetParams_v2;
            Cuda graph_nodes::change[KernelNodeParams::function_of::<1>(parameters)] => (node: Handle, parameters: *const KernelNodeParams):
                cuGraphKernelNodeSetParams;
            Cuda graph_nodes::change[KernelNodeParams::function_of_node(parameters)] => (node: Handle, parameters: *const c_void):
                cuGraphNodeSetParams, cuGraphNodeSetParams_v2;
            Cuda graph_nodes::change_exec[exec, KernelNodeParams::function_of::<2>(parameters)] => (exec: Handle, node: Handle, parameters:
                *const KernelNodeParams):
                cuGraphExecKernelNodeSetParams_v2;
            Cuda graph_nodes::change_exec[exec, KernelNodeParams::function_of::<1>(parameters)] => (exec: Handle, node: Handle, parameters:
                *const KernelNodeParams):
                cuGraphExecKernelNodeSetParams;
            Cuda graph_nodes::change_exec[exec, KernelNodeParams::function_of_node(parameters)] => (exec: Handle, node: Handle, parameters:
                *const c_void):
                cuGraphExecNodeSetParams;
            // Contexts, streams and code: what takes memory without an allocation call.
            Cuda contexts::retain_primary[context, device] => (context: *mut Handle, device: Device): cuDevicePrimaryCtxRetain;
            Cuda context_end::release_primary[device] => (device: Device) [end_contexts()]:
                cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxReset;
            Cuda contexts::create[context, device] => (context: *mut Handle, flags: u32, device: Device):
                cuCtxCreate_v2, cuCtxCreate, cuGLCtxCreate_v2, cuGLCtxCreate;
            Cuda contexts::create[context, device] => (context: *mut Handle, parameters: *mut c_void, count: i32, flags: u32, device:
                Device):
                cuCtxCreate_v3;
            Cuda contexts::create[context, device] => (context: *mut Handle, parameters: *mut c_void, flags: u32, device: Device):
                cuCtxCreate_v4;
            Cuda contexts::create[context, device] => (context: *mut Handle, flags: u32, device: Device, vdpau: u32, functions: *mut
                c_void):
                cuVDPAUCtxCreate_v2, cuVDPAUCtxCreate;
            Cuda context_end::destroy[context] => (context: Handle) [end_contexts()]: cuCtxDestroy_v2, cuCtxDestroy;
            Cuda context_end::detach[context] => (context: Handle) [end_contexts()]: cuCtxDetach;
            Cuda green_contexts::create[green, device] => (green: *mut Handle, description: Handle, device: Device, flags: u32):
                cuGreenCtxCreate;
            Cuda green_contexts::destroy[] => (green: Handle) [end_contexts()]: cuGreenCtxDestroy;
            Cuda set_limit::set_limit[limit, value] => (limit: i32, value: usize): cuCtxSetLimit;
            Cuda modules::load[module, || image_at(data)] => (module: *mut Handle, data: *const c_void):
                cuModuleLoadData, cuModuleLoadFatBinary;
            Cuda modules::load[module, || image_at(data)] => (module: *mut Handle, data: *const c_void, count: u32, options: *mut i32,
                values: *mut *mut c_void):
                cuModuleLoadDataEx;
            Cuda modules::load[module, || image_in_file(path)] => (module: *mut Handle, path: *const c_char): cuModuleLoad;
            Cuda modules::unload[] => (module: Handle) [unload()]: cuModuleUnload;
            Cuda modules::load_lazily[] => (function: *mut Handle, module: Handle, name: *const c_char): cuModuleGetFunction;
            Cuda modules::load_lazily[] => (function: Handle): cuFuncLoad;
            Cuda modules::load_lazily[] => (address: *mut DevicePtr, bytes: *mut usize, module: Handle, name: *const c_char):
                cuModuleGetGlobal_v2, cuModuleGetGlobal;
            Cuda libraries::load[library, || image_at(code)] => (library: *mut Handle, code: *const c_void, options: *mut i32, values: *mut
                *mut c_void, count: u32, library_options: *mut i32, library_values: *mut *mut c_void, library_count: u32):
                cuLibraryLoadData;
            Cuda libraries::load[library, || image_in_file(path)] => (library: *mut Handle, path: *const c_char, options: *mut i32, values:
                *mut *mut c_void, count: u32, library_options: *mut i32, library_values: *mut *mut c_void, library_count: u32):
                cuLibraryLoadFromFile;
            Cuda libraries::unload[library] => (library: Handle) [unload()]: cuLibraryUnload;
            Cuda libraries::kernel[kernel, library] => (kernel: *mut Handle, library: Handle, name: *const c_char): cuLibraryGetKernel;
            Cuda libraries::kernels[list, count, library] => (list: *mut Handle, count: u32, library: Handle): cuLibraryEnumerateKernels;
            Cuda libraries::load_in_context[library] => (module: *mut Handle, library: Handle): cuLibraryGetModule;
            Cuda libraries::load_in_context[library] => (address: *mut DevicePtr, bytes: *mut usize, library: Handle, name: *const c_char):
                cuLibraryGetGlobal, cuLibraryGetManaged;
            Cuda libraries::load_kernel[kernel] => (function: *mut Handle, kernel: Handle): cuKernelGetFunction;
            Cuda streams::create[stream] => (stream: *mut Handle, flags: u32): cuStreamCreate;
            Cuda streams::create[stream] => (stream: *mut Handle, flags: u32, priority: i32): cuStreamCreateWithPriority;
            Cuda streams::create[stream] => (stream: *mut Handle, green: Handle, flags: u32, priority: i32): cuGreenCtxStreamCreate;
            Cuda streams::destroy[stream] => (stream: Handle): cuStreamDestroy_v2, cuStreamDestroy;
            // Launches.
            Cuda launch::kernel[function, effective(stream), [grid_x, grid_y, grid_z], [block_x, block_y, block_z]] => (function: Handle,
                grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle, parameters:
                *mut *mut c_void, extra: *mut *mut c_void) [kernel(effective(stream), function)]:
                cuLaunchKernel | cuLaunchKernel_ptsz;
            Cuda launch::kernel[function, effective(stream), [grid_x, grid_y, grid_z], [block_x, block_y, block_z]] => (function: Handle,
                grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Handle, parameters:
                *mut *mut c_void) [kernel(effective(stream), function)]:
                cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz;
            Cuda launch::kernel_by_config[function, config, effective] => (config: *const LaunchConfig, function: Handle, parameters: *mut
                *mut c_void, extra: *mut *mut c_void) [kernel_by_config(config, function, effective)]:
                cuLaunchKernelEx | cuLaunchKernelEx_ptsz;
            Cuda launch::kernels[list, count] => (list: *mut LaunchParams, count: u32, flags: u32) [kernels(list, count)]:
                cuLaunchCooperativeKernelMultiDevice;
            Cuda launch::kernel[function, DEFAULT_STREAM, [0; 3], [0; 3]] => (function: Handle) [kernel(DEFAULT_STREAM, function)]:
                cuLaunch;
            Cuda launch::kernel[function, DEFAULT_STREAM, [width as u32, height as u32, 0], [0; 3]] => (function: Handle, width: i32,
                height: i32) [kernel(DEFAULT_STREAM, function)]:
                cuLaunchGrid;
            Cuda launch::kernel[function, stream, [width as u32, height as u32, 0], [0; 3]] => (function: Handle, width: i32, height: i32,
                stream: Handle) [kernel(stream, function)]:
                cuLaunchGridAsync;
            Cuda launch::graph[exec, effective(stream)] => (exec: Handle, stream: Handle) [graph(effective(stream), exec)]:
                cuGraphLaunch | cuGraphLaunch_ptsz;
            // Copies and fills within the device.
            Cuda copy::within_device[effective(DEFAULT_STREAM), bytes] => (to: u64, from: u64, bytes: usize) [copy(Direction::Within,
                effective(DEFAULT_STREAM), bytes)]:
                cuMemcpyDtoD_v2, cuMemcpyDtoD | cuMemcpyDtoD_v2_ptds;
            Cuda copy::within_device[effective(stream), bytes] => (to: u64, from: u64, bytes: usize, stream: Handle)
                [copy(Direction::Within, effective(stream), bytes)]:
                cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync | cuMemcpyDtoDAsync_v2_ptsz;
            Cuda copy::within_device[effective(DEFAULT_STREAM), bytes] => (to: u64, to_context: Handle, from: u64, from_context: Handle,
                bytes: usize) [copy(Direction::Within, effective(DEFAULT_STREAM), bytes)]:
                cuMemcpyPeer | cuMemcpyPeer_ptds;
            Cuda copy::within_device[effective(stream), bytes] => (to: u64, to_context: Handle, from: u64, from_context: Handle, bytes:
                usize, stream: Handle) [copy(Direction::Within, effective(stream), bytes)]:
                cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz;
            Cuda copy::within_device[effective(DEFAULT_STREAM), bytes] => (to: Handle, to_offset: usize, from: Handle, from_offset: usize,
                bytes: usize) [copy(Direction::Within, effective(DEFAULT_STREAM), bytes)]:
                cuMemcpyAtoA_v2, cuMemcpyAtoA | cuMemcpyAtoA_v2_ptds;
            Cuda copy::within_device[effective(DEFAULT_STREAM), bytes] => (first: u64, second: u64, third: u64, bytes: usize)
                [copy(Direction::Within, effective(DEFAULT_STREAM), bytes)]:
                cuMemcpyAtoD_v2, cuMemcpyDtoA_v2, cuMemcpyAtoD, cuMemcpyDtoA | cuMemcpyAtoD_v2_ptds, cuMemcpyDtoA_v2_ptds;
            Cuda copy::fill[effective(DEFAULT_STREAM), count] => (address: DevicePtr, value: u32, count: usize)
                [fill(effective(DEFAULT_STREAM), count)]:
                cuMemsetD8_v2, cuMemsetD16_v2, cuMemsetD32_v2, cuMemsetD8, cuMemsetD16, cuMemsetD32 | cuMemsetD8_v2_ptds,
                cuMemsetD16_v2_ptds, cuMemsetD32_v2_ptds;
            Cuda copy::fill[effective(stream), count] => (address: DevicePtr, value: u32, count: usize, stream: Handle)
                [fill(effective(stream), count)]:
                cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async | cuMemsetD8Async_ptsz, cuMemsetD16Async_ptsz, cuMemsetD32Async_ptsz;
            Cuda copy::fill[effective(DEFAULT_STREAM), width.saturating_mul(height)] => (address: DevicePtr, pitch: usize, value: u32,
                width: usize, height: usize) [fill(effective(DEFAULT_STREAM), width.saturating_mul(height))]:
                cuMemsetD2D8_v2, cuMemsetD2D16_v2, cuMemsetD2D32_v2, cuMemsetD2D8, cuMemsetD2D16, cuMemsetD2D32 | cuMemsetD2D8_v2_ptds,
                cuMemsetD2D16_v2_ptds, cuMemsetD2D32_v2_ptds;
            Cuda copy::fill[effective(stream), width.saturating_mul(height)] => (address: DevicePtr, pitch: usize, value: u32, width: usize,
                height: usize, stream: Handle) [fill(effective(stream), width.saturating_mul(height))]:
                cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async | cuMemsetD2D8Async_ptsz, cuMemsetD2D16Async_ptsz,
                cuMemsetD2D32Async_ptsz;
            Cuda copy::decompress[effective(stream), count] => (parameters: *mut c_void, count: usize, flags: u32, failed: *mut usize,
                stream: Handle):
                cuMemBatchDecompressAsync | cuMemBatchDecompressAsync_ptsz;
            // Copies whose addresses say where they lie.
            Cuda copy::by_address[effective(DEFAULT_STREAM), to, from, bytes] => (to: u64, from: u64, bytes: usize)
                [copy(Direction::ByAddress, effective(DEFAULT_STREAM), bytes)]:
                cuMemcpy | cuMemcpy_ptds;
            Cuda copy::by_address[effective(stream), to, from, bytes] => (to: u64, from: u64, bytes: usize, stream: Handle)
                [copy(Direction::ByAddress, effective(stream), bytes)]:
                cuMemcpyAsync | cuMemcpyAsync_ptsz;
            Cuda copy::by_address[effective(stream), to, from, bytes] => (to: u64, from: u64, bytes: usize, attributes: *const c_void,
                stream: Handle) [copy(Direction::ByAddress, effective(stream), bytes)]:
                cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz;
            Cuda copy::described[effective(DEFAULT_STREAM), what] => (what: *const Copy2d) [copy_described(effective(DEFAULT_STREAM),
                what)]:
                cuMemcpy2D_v2, cuMemcpy2DUnaligned_v2 | cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2_ptds;
            Cuda copy::described[effective(stream), what] => (what: *const Copy2d, stream: Handle) [copy_described(effective(stream),
                what)]:
                cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz;
            Cuda copy::described[effective(DEFAULT_STREAM), what] => (what: *const Copy3d) [copy_described(effective(DEFAULT_STREAM),
                what)]:
                cuMemcpy3D_v2, cuMemcpy3DPeer | cuMemcpy3D_v2_ptds, cuMemcpy3DPeer_ptds;
            Cuda copy::described[effective(stream), what] => (what: *const Copy3d, stream: Handle) [copy_described(effective(stream),
                what)]:
                cuMemcpy3DAsync_v2, cuMemcpy3DPeerAsync | cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DPeerAsync_ptsz;
            Cuda copy::described[DEFAULT_STREAM, what] => (what: *const Copy2dV1) [copy_described(DEFAULT_STREAM, what)]:
                cuMemcpy2D, cuMemcpy2DUnaligned;
            Cuda copy::described[stream, what] => (what: *const Copy2dV1, stream: Handle) [copy_described(stream, what)]: cuMemcpy2DAsync;
            Cuda copy::described[DEFAULT_STREAM, what] => (what: *const Copy3dV1) [copy_described(DEFAULT_STREAM, what)]: cuMemcpy3D;
            Cuda copy::described[stream, what] => (what: *const Copy3dV1, stream: Handle) [copy_described(stream, what)]: cuMemcpy3DAsync;
            Cuda copy::batch[effective(stream), to, from, sizes, count] => (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize,
                count: usize, attributes: *mut c_void, indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: Handle)
                [copies(effective(stream), sizes, count)]:
                cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz;
            Cuda copy::batch[effective(stream), to, from, sizes, count] => (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize,
                count: usize, attributes: *mut c_void, indices: *mut usize, attribute_count: usize, stream: Handle)
                [copies(effective(stream), sizes, count)]:
                cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz;
            Cuda copy::batch_3d[effective(stream), list, count] => (count: usize, list: *mut Operation, failed: *mut usize, flags: u64,
                stream: Handle) [copy(Direction::ByAddress, effective(stream), 0)]:
                cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz;
            Cuda copy::batch_3d[effective(stream), list, count] => (count: usize, list: *mut Operation, flags: u64, stream: Handle)
                [copy(Direction::ByAddress, effective(stream), 0)]:
                cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz;
            Cuda copy::batch_3d[effective(stream), what, 1] => (what: *mut Operation, flags: u64, stream: Handle)
                [copy(Direction::ByAddress, effective(stream), 0)]:
                cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz;
            Cuda copy::batch_3d[effective(stream), list, count] => (count: usize, list: *mut FabricOperation, flags: u64, stream: Handle)
                [copy(Direction::ByAddress, effective(stream), 0)]:
                cuFabricCpyBatchAsync | cuFabricCpyBatchAsync_ptsz;
            // Work in a stream that is not computation: copies from and to the host, waits, host functions, prefetches.
            Cuda stream_order::interleave[effective(DEFAULT_STREAM)] => (to: u64, from: u64, bytes: usize) [copy_by_name(SYMBOL,
                effective(DEFAULT_STREAM), bytes)]:
                cuMemcpyHtoD_v2, cuMemcpyDtoH_v2, cuMemcpyHtoD, cuMemcpyDtoH | cuMemcpyHtoD_v2_ptds, cuMemcpyDtoH_v2_ptds;
            Cuda stream_order::interleave[effective(stream)] => (to: u64, from: u64, bytes: usize, stream: Handle) [copy_by_name(SYMBOL,
                effective(stream), bytes)]:
                cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync, cuMemcpyDtoHAsync | cuMemcpyHtoDAsync_v2_ptsz,
                cuMemcpyDtoHAsync_v2_ptsz;
            Cuda stream_order::interleave[effective(DEFAULT_STREAM)] => (first: u64, second: u64, third: u64, bytes: usize)
                [copy_by_name(SYMBOL, effective(DEFAULT_STREAM), bytes)]:
                cuMemcpyAtoH_v2, cuMemcpyHtoA_v2, cuMemcpyAtoH, cuMemcpyHtoA | cuMemcpyAtoH_v2_ptds, cuMemcpyHtoA_v2_ptds;
            Cuda stream_order::interleave[effective(stream)] => (first: u64, second: u64, third: u64, bytes: usize, stream: Handle)
                [copy_by_name(SYMBOL, effective(stream), bytes)]:
                cuMemcpyAtoHAsync_v2, cuMemcpyHtoAAsync_v2, cuMemcpyAtoHAsync, cuMemcpyHtoAAsync | cuMemcpyAtoHAsync_v2_ptsz,
                cuMemcpyHtoAAsync_v2_ptsz;
            Cuda stream_order::interleave[effective(stream)] => (stream: Handle, event: Handle, flags: u32):
                cuStreamWaitEvent | cuStreamWaitEvent_ptsz;
            Cuda stream_order::interleave[effective(stream)] => (stream: Handle, address: DevicePtr, value: u64, flags: u32):
                cuStreamWaitValue32_v2, cuStreamWaitValue64_v2, cuStreamWaitValue32, cuStreamWaitValue64 | cuStreamWaitValue32_v2_ptsz,
                cuStreamWaitValue64_v2_ptsz, cuStreamWaitValue32_ptsz, cuStreamWaitValue64_ptsz;
            Cuda stream_order::interleave[effective(stream)] => (stream: Handle, count: u32, parameters: *mut c_void, flags: u32):
                cuStreamBatchMemOp, cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp_v2_ptsz;
            Cuda stream_order::interleave[effective(stream)] => (semaphores: *const Handle, parameters: *const c_void, count: u32, stream:
                Handle):
                cuWaitExternalSemaphoresAsync | cuWaitExternalSemaphoresAsync_ptsz;
            Cuda stream_order::interleave[effective(stream)] => (stream: Handle, function: *mut c_void, data: *mut c_void):
                cuLaunchHostFunc | cuLaunchHostFunc_ptsz;
            Cuda stream_order::interleave[effective(stream)] => (stream: Handle, function: *mut c_void, data: *mut c_void, flags: u32):
                cuStreamAddCallback, cuLaunchHostFunc_v2 | cuStreamAddCallback_ptsz, cuLaunchHostFunc_v2_ptsz;
            Cuda stream_order::prefetch::<PER_THREAD> => (address: DevicePtr, bytes: usize, to: i32, stream: Handle):
                cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz;
            Cuda stream_order::prefetch_v2::<PER_THREAD> => (address: DevicePtr, bytes: usize, to: Location, flags: u32, stream: Handle):
                cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz;
            Cuda stream_order::prefetch_batch::<PER_THREAD> => (addresses: *mut DevicePtr, sizes: *mut usize, count: usize, locations: *mut
                Location, indices: *mut usize, location_count: usize, flags: u64, stream: Handle):
                cuMemPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz,
                cuMemDiscardAndPrefetchBatchAsync_ptsz;
            // Memory and utilization as a program reads them.
            Cuda memory_info::info => (free: *mut usize, total: *mut usize): cuMemGetInfo_v2;
            Cuda memory_info::info_v1 => (free: *mut u32, total: *mut u32): cuMemGetInfo;
            Cuda memory_info::device_total[bytes, device] => (bytes: *mut usize, device: Device): cuDeviceTotalMem_v2;
            Cuda memory_info::device_total_v1[bytes, device] => (bytes: *mut u32, device: Device): cuDeviceTotalMem;
        }
    };
}

pub(crate) use entry_points;
