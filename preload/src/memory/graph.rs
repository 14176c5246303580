//! Graphs with memory nodes: the device's graph memory grows when such a graph is first launched or uploaded.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::known::{self, Current};
use super::table::Table;
use super::{POOL_STEP, account, pools, rounded_pages};
use crate::cuda::{
    AllocNodeParams, Device, GRAPH_RESERVED_CURRENT, Handle, NODE_CHILD_GRAPH, NODE_KERNEL, NODE_MEM_ALLOC, OUT_OF_MEMORY, SUCCESS, Status,
};
use crate::session::Gpu;
use crate::{driver, trace};

/// Instantiated graphs with memory nodes: what their nodes ask for in bytes, and [`RESIDENT`].
static EXECS: Table = Table::new();
/// It has been launched: its memory is there, until the device's graph memory is trimmed.
const RESIDENT: u64 = 1 << 63;

/// The graph memory charged for each device; as the records of pools.
static RESERVED: [AtomicU64; vgpu_region::MAX_GPUS] = [const { AtomicU64::new(0) }; vgpu_region::MAX_GPUS];

fn reserved(device: Device) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the driver writes one word.
    (unsafe { driver::device_graph_memory(device, GRAPH_RESERVED_CURRENT, &raw mut value) } == SUCCESS).then_some(value)
}

/// Brings a device's graph memory in line.
pub fn settle(gpu: &Gpu) {
    if let Some(record) = RESERVED.get(gpu.device as usize).filter(|_| !EXECS.is_unused()) {
        pools::settle(gpu, record, None, || reserved(gpu.device));
    }
}

/// The device's graph memory was trimmed: what is launched next may grow it again.
pub fn trimmed() {
    for (_, record) in EXECS.iter() {
        record.fetch_and(!RESIDENT, AcqRel);
    }
}

/// What the memory nodes of a graph and of the graphs in it ask for, in bytes. `kernels` is raised by the number of kernels in it.
unsafe fn asked_for(graph: Handle, depth: u32, kernels: &mut u64) -> u64 {
    let mut nodes = [core::ptr::null_mut(); 128];
    let mut count = 0;
    // SAFETY: the driver tells the number of nodes when it is given no array.
    if unsafe { driver::graph_nodes(graph, core::ptr::null_mut(), &raw mut count) } != SUCCESS || count == 0 {
        return 0;
    }
    // What is not read may have memory nodes: it counts as one step, so that launches are looked at.
    if depth > 8 {
        return POOL_STEP;
    }
    // A graph of more nodes than fit here is read into memory of its own.
    let many: *mut [Handle; 1 << 20] = if count > nodes.len() { crate::session::allocate() } else { core::ptr::null_mut() };
    let list = if many.is_null() { nodes.as_mut_ptr() } else { many.cast() };
    let mut room = if many.is_null() { nodes.len() } else { 1 << 20 };
    let mut sum = if count > room { POOL_STEP } else { 0 };
    // SAFETY: the driver writes at most `room` handles, and says how many; each is a node of this graph.
    unsafe {
        if driver::graph_nodes(graph, list, &raw mut room) == SUCCESS {
            for &node in core::slice::from_raw_parts(list, room.min(count)) {
                let mut kind = 0;
                if driver::node_type(node, &raw mut kind) != SUCCESS {
                    continue;
                }
                if kind == NODE_KERNEL {
                    *kernels += 1;
                } else if kind == NODE_MEM_ALLOC {
                    let mut parameters = core::mem::MaybeUninit::<[AllocNodeParams; 2]>::zeroed();
                    // A node that tells nothing still counts: the launch takes at least one step.
                    let told = driver::node_allocation(node, parameters.as_mut_ptr().cast()) == SUCCESS;
                    let bytes = if told { (*parameters.as_ptr().cast::<AllocNodeParams>()).bytes as u64 } else { POOL_STEP };
                    sum = sum.saturating_add(bytes);
                } else if kind == NODE_CHILD_GRAPH {
                    let mut child = core::ptr::null_mut();
                    // What cannot be looked into counts as what is too deep.
                    let told = driver::node_child(node, &raw mut child) == SUCCESS;
                    sum = sum.saturating_add(if told { asked_for(child, depth + 1, kernels) } else { POOL_STEP });
                }
            }
        }
        if !many.is_null() {
            libc::munmap(many.cast(), size_of::<[Handle; 1 << 20]>());
        }
    }
    sum
}

unsafe fn note(exec: *mut Handle, graph: Handle, status: Status) -> Status {
    if status == SUCCESS && !exec.is_null() {
        // SAFETY: the driver has just accepted the graph, and written the handle.
        unsafe {
            let mut kernels = 0;
            let bytes = asked_for(graph, 0, &mut kernels);
            trace::names::note_graph(*exec, kernels);
            if bytes != 0 && !EXECS.insert(*exec as u64, bytes) {
                // What cannot be watched cannot be had.
                driver::graph_exec_destroy(*exec);
                *exec = core::ptr::null_mut();
                return OUT_OF_MEMORY;
            }
        }
    }
    status
}

/// `cuGraphInstantiateWithFlags`
pub unsafe fn instantiate(
    real: unsafe extern "C" fn(*mut Handle, Handle, u64) -> Status,
    exec: *mut Handle,
    graph: Handle,
    flags: u64,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { note(exec, graph, real(exec, graph, flags)) }
}

/// `cuGraphInstantiate` and `_v2`
pub unsafe fn instantiate_v2(
    real: unsafe extern "C" fn(*mut Handle, Handle, *mut Handle, *mut c_char, usize) -> Status,
    exec: *mut Handle,
    graph: Handle,
    node: *mut Handle,
    log: *mut c_char,
    size: usize,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { note(exec, graph, real(exec, graph, node, log, size)) }
}

/// `cuGraphInstantiateWithParams`
pub unsafe fn instantiate_with(
    real: unsafe extern "C" fn(*mut Handle, Handle, *mut c_void) -> Status,
    exec: *mut Handle,
    graph: Handle,
    parameters: *mut c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { note(exec, graph, real(exec, graph, parameters)) }
}

/// The memory nodes of an updated graph may be others now.
unsafe fn updated(exec: Handle, graph: Handle, status: Status) -> Status {
    if status == SUCCESS {
        let mut kernels = 0;
        // SAFETY: a graph that the driver has just accepted.
        let bytes = unsafe { asked_for(graph, 0, &mut kernels) };
        trace::names::note_graph(exec, kernels);
        match EXECS.get(exec as u64) {
            // Launched anew it may grow the graph memory again.
            Some(record) => record.store(bytes, Release),
            None if bytes != 0 => _ = EXECS.insert(exec as u64, bytes),
            None => {}
        }
    }
    status
}

/// `cuGraphExecUpdate_v2`
pub unsafe fn update(
    real: unsafe extern "C" fn(Handle, Handle, *mut c_void) -> Status,
    exec: Handle,
    graph: Handle,
    result: *mut c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { updated(exec, graph, real(exec, graph, result)) }
}

/// `cuGraphExecUpdate`
pub unsafe fn update_v1(
    real: unsafe extern "C" fn(Handle, Handle, *mut Handle, *mut i32) -> Status,
    exec: Handle,
    graph: Handle,
    node: *mut Handle,
    result: *mut i32,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { updated(exec, graph, real(exec, graph, node, result)) }
}

/// `cuGraphLaunch`
#[inline]
pub unsafe fn launch(real: unsafe extern "C" fn(Handle, Handle) -> Status, exec: Handle, stream: Handle) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_memory(exec, || real(exec, stream)) }
}

/// `cuGraphUpload`
pub unsafe fn upload(real: unsafe extern "C" fn(Handle, Handle) -> Status, exec: Handle, stream: Handle) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { with_memory(exec, || real(exec, stream)) }
}

unsafe fn with_memory(exec: Handle, call: impl FnOnce() -> Status) -> Status {
    if EXECS.is_unused() {
        return call();
    }
    let Some(record) = EXECS.get(exec as u64) else { return call() };
    let Current { gpu, .. } = match known::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    let Some(charged) = RESERVED.get(gpu.device as usize) else { return call() };
    let wanted = record.load(Acquire);
    if wanted & RESIDENT != 0 {
        let status = call();
        settle(gpu);
        return status;
    }
    let claim = match account::claim(gpu, rounded_pages(wanted, POOL_STEP)) {
        Ok(claim) => claim,
        Err(status) => return status,
    };
    let status = call();
    if status == SUCCESS {
        record.fetch_or(RESIDENT, Relaxed);
    }
    pools::settle(gpu, charged, Some(claim), || reserved(gpu.device));
    status
}

/// `cuGraphExecDestroy`: its memory stays in the device's graph memory until that is trimmed.
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, exec: Handle) -> Status {
    let removed = if EXECS.is_unused() { None } else { EXECS.remove(exec as u64) };
    // SAFETY: the program's own argument.
    let status = unsafe { real(exec) };
    if let (Some(value), true) = (removed, status != SUCCESS) {
        EXECS.insert(exec as u64, value);
    }
    status
}
