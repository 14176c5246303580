//! Kernel nodes that a program adds to a graph or changes in one.

use crate::hooks::local_memory::Growth;
use crate::hooks::{graphs, local_memory};
use vgpu_cuda_abi::cuda::{Handle, SUCCESS, Status};

/// Makes a call that puts `kernel` into a graph. Its library and its local memory are claimed as for a launch.
pub fn change(call: impl FnOnce() -> Status, kernel: Option<Handle>) -> Status {
    match kernel.map(local_memory::before).transpose() {
        Ok(growth) => {
            let status = call();
            growth.flatten().map(Growth::end);
            status
        }
        Err(status) => status,
    }
}

/// Makes a call that puts `kernel` into an instantiated graph.
pub fn change_exec(call: impl FnOnce() -> Status, exec: Handle, kernel: Option<Handle>) -> Status {
    let status = change(call, kernel);
    let bytes = kernel.map_or(0, local_memory::size_of);
    if status == SUCCESS {
        graphs::needs_local(exec, bytes);
    }
    status
}
