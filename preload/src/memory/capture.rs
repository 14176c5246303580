//! Streams that are being captured: nothing may be asked of them, nor of a pool meanwhile.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::cuda::{Handle, SUCCESS, Status};
use crate::driver;

/// Set when the process first captures a stream: others need not ask.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// `cuStreamBeginCapture_v2`
pub unsafe fn begin(real: unsafe extern "C" fn(Handle, i32) -> Status, stream: Handle, mode: i32) -> Status {
    CAPTURES.store(true, Relaxed);
    // SAFETY: the program's own arguments.
    unsafe { real(stream, mode) }
}

/// `cuStreamBeginCapture`
pub unsafe fn begin_v1(real: unsafe extern "C" fn(Handle) -> Status, stream: Handle) -> Status {
    CAPTURES.store(true, Relaxed);
    // SAFETY: the program's own argument.
    unsafe { real(stream) }
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
    CAPTURES.store(true, Relaxed);
    // SAFETY: the program's own arguments.
    unsafe { real(stream, graph, dependencies, edges, count, mode) }
}

/// Whether the process has ever begun to capture a stream.
#[inline]
pub fn has_begun() -> bool {
    CAPTURES.load(Relaxed)
}

#[inline]
pub fn is_under_way(stream: Handle) -> bool {
    if !CAPTURES.load(Relaxed) {
        return false;
    }
    let mut status = 0;
    // SAFETY: the driver writes one integer.
    unsafe { driver::is_capturing(stream, &raw mut status) == SUCCESS && status != 0 }
}
