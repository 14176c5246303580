//! Beginning and ending captures.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::memory::objects::captures::{CAPTURES, GOING_ON, is_under_way, note_origin, one_less, take_origin};
use vgpu_cuda_abi::cuda::{CAPTURE_INVALIDATED, CAPTURE_UNJOINED, Handle, SUCCESS, Status, meant};

fn beginning(stream: Handle, call: impl FnOnce() -> Status) -> Status {
    CAPTURES.store(true, Relaxed);
    GOING_ON.fetch_add(1, AcqRel);
    let status = call();
    if status == SUCCESS {
        note_origin(stream);
    } else {
        one_less();
    }
    status
}

/// `cuStreamBeginCapture_v2`
pub unsafe fn begin(real: unsafe extern "C" fn(Handle, i32) -> Status, stream: Handle, mode: i32) -> Status {
    // SAFETY: the program's own arguments.
    beginning(stream, || unsafe { real(stream, mode) })
}

/// `cuStreamBeginCapture`
pub unsafe fn begin_v1(real: unsafe extern "C" fn(Handle) -> Status, stream: Handle) -> Status {
    // SAFETY: the program's own argument.
    beginning(stream, || unsafe { real(stream) })
}

/// `cuStreamBeginCaptureToGraph`
pub unsafe fn begin_to_graph(
    real: unsafe extern "C" fn(Handle, Handle, *const Handle, *const c_void, usize, i32) -> Status,
    stream: Handle,
    graph: Handle,
    dependencies: *const Handle,
    edges: *const c_void,
    count: usize,
    mode: i32,
) -> Status {
    // SAFETY: the program's own arguments.
    beginning(stream, || unsafe { real(stream, graph, dependencies, edges, count, mode) })
}

/// `cuStreamEndCapture`: also of a capture that was spoiled. A stream that is captured still has not ended it.
pub unsafe fn end<const OWN: bool>(
    real: unsafe extern "C" fn(Handle, *mut Handle) -> Status,
    stream: Handle,
    graph: *mut Handle,
) -> Status {
    // SAFETY: the program's own arguments.
    let status = unsafe { real(stream, graph) };
    if matches!(status, SUCCESS | CAPTURE_INVALIDATED | CAPTURE_UNJOINED) && !is_under_way(meant::<OWN>(stream)) {
        take_origin(stream);
        one_less();
    }
    status
}

/// Destroys a stream with `call`; a capture that began in it ends with it.
pub fn ending(stream: Handle, call: impl FnOnce() -> Status) -> Status {
    // Before the call: afterwards another thread may be given the same handle.
    if !(is_under_way(stream) && take_origin(stream)) {
        return call();
    }
    let status = call();
    if status == SUCCESS {
        one_less();
    } else {
        note_origin(stream);
    }
    status
}
