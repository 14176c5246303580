//! Kernels that are put into graphs by hand.

use core::ffi::c_void;

use crate::hooks::local_memory::Growth;
use crate::hooks::{graphs, local_memory};
use vgpu_cuda_abi::cuda::{Handle, KernelNodeParams, NODE_KERNEL, SUCCESS, Status};

/// Makes a call that puts a kernel into a graph, or another one in its place: its library and its local memory are taken as for a launch.
///
/// # Safety
/// Null, or the program's own parameters, of that version.
unsafe fn with_kernel<const VERSION: u32>(parameters: *const KernelNodeParams, call: impl FnOnce() -> Status) -> Status {
    // SAFETY: as the caller promises.
    match unsafe { KernelNodeParams::function_at::<VERSION>(parameters) }.map(local_memory::before).transpose() {
        Ok(growth) => {
            let status = call();
            growth.flatten().map(Growth::end);
            status
        }
        Err(status) => status,
    }
}

type AddNode<T> = unsafe extern "C" fn(*mut Handle, Handle, *const Handle, usize, *const T) -> Status;

/// `cuGraphAddKernelNode` and `_v2`
pub unsafe fn add<const VERSION: u32>(
    real: AddNode<KernelNodeParams>,
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    parameters: *const KernelNodeParams,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_kernel::<VERSION>(parameters, || real(node, graph, after, count, parameters)) }
}

/// The kernel in a `CUgraphNodeParams`: the type comes first, the parameters 16 bytes behind it.
unsafe fn kernel_in(parameters: *const c_void) -> *const KernelNodeParams {
    // SAFETY: the program's own: null or a whole structure.
    unsafe {
        let kind = parameters.cast::<i32>().as_ref();
        if kind == Some(&NODE_KERNEL) { parameters.byte_add(16).cast() } else { core::ptr::null() }
    }
}

/// `cuGraphAddNode`
pub unsafe fn add_any(
    real: AddNode<c_void>,
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    parameters: *const c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_kernel::<2>(kernel_in(parameters), || real(node, graph, after, count, parameters)) }
}

/// `cuGraphAddNode_v2`
pub unsafe fn add_any_v2(
    real: unsafe extern "C" fn(*mut Handle, Handle, *const Handle, *const c_void, usize, *const c_void) -> Status,
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    edges: *const c_void,
    count: usize,
    parameters: *const c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_kernel::<2>(kernel_in(parameters), || real(node, graph, after, edges, count, parameters)) }
}

/// `cuGraphKernelNodeSetParams` and `_v2`
pub unsafe fn set<const VERSION: u32>(
    real: unsafe extern "C" fn(Handle, *const KernelNodeParams) -> Status,
    node: Handle,
    parameters: *const KernelNodeParams,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_kernel::<VERSION>(parameters, || real(node, parameters)) }
}

/// `cuGraphNodeSetParams`
pub unsafe fn set_any(real: unsafe extern "C" fn(Handle, *const c_void) -> Status, node: Handle, parameters: *const c_void) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_kernel::<2>(kernel_in(parameters), || real(node, parameters)) }
}

/// Makes a call that puts another kernel into an instantiated graph.
unsafe fn exchange_with<const VERSION: u32>(exec: Handle, parameters: *const KernelNodeParams, call: impl FnOnce() -> Status) -> Status {
    // SAFETY: as in `with_kernel`.
    let status = unsafe { with_kernel::<VERSION>(parameters, call) };
    // SAFETY: as above.
    let bytes = unsafe { KernelNodeParams::function_at::<VERSION>(parameters) }.map_or(0, local_memory::size_of);
    if status == SUCCESS {
        graphs::needs_local(exec, bytes);
    }
    status
}

/// `cuGraphExecKernelNodeSetParams` and `_v2`
pub unsafe fn exchange<const VERSION: u32>(
    real: unsafe extern "C" fn(Handle, Handle, *const KernelNodeParams) -> Status,
    exec: Handle,
    node: Handle,
    parameters: *const KernelNodeParams,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { exchange_with::<VERSION>(exec, parameters, || real(exec, node, parameters)) }
}

/// `cuGraphExecNodeSetParams`
pub unsafe fn exchange_any(
    real: unsafe extern "C" fn(Handle, Handle, *const c_void) -> Status,
    exec: Handle,
    node: Handle,
    parameters: *const c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { exchange_with::<2>(exec, kernel_in(parameters), || real(exec, node, parameters)) }
}
