//! Streams that are being captured: nothing may be asked of them, nor of a pool meanwhile; and what would spoil a capture is not done while
//! one goes on.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

use crate::compute::hooks::meant;
use crate::cuda::{CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNJOINED, Handle, SUCCESS, Status};
use crate::driver::{self, CaptureRelaxed};

/// Set when the process first captures a stream: others need not ask.
static CAPTURES: AtomicBool = AtomicBool::new(false);
/// Captures that have begun and not ended; rather too many than too few.
static GOING_ON: AtomicU32 = AtomicU32::new(0);
/// The streams that they began in, as far as there is room. Others that joined may come and go: NCCL's do.
static ORIGINS: [AtomicPtr<c_void>; 64] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 64];

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

fn note_origin(stream: Handle) {
    _ = ORIGINS.iter().find(|origin| origin.compare_exchange(core::ptr::null_mut(), stream, AcqRel, Relaxed).is_ok());
}

/// Whether a capture began in this stream. It is forgotten.
fn take_origin(stream: Handle) -> bool {
    let take = |origin: &AtomicPtr<c_void>| origin.compare_exchange(stream, core::ptr::null_mut(), AcqRel, Relaxed).is_ok();
    !stream.is_null() && ORIGINS.iter().any(take)
}

fn one_less() {
    _ = GOING_ON.fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1));
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

/// Whether the process has ever begun to capture a stream.
#[inline]
pub fn has_begun() -> bool {
    CAPTURES.load(Relaxed)
}

/// Whether some stream of the process may be in capture now.
#[inline]
pub fn may_go_on() -> bool {
    GOING_ON.load(Acquire) != 0
}

/// While this lives, calls of ours that might wait spoil no capture that goes on.
#[inline]
pub fn leave_alone() -> Option<CaptureRelaxed> {
    may_go_on().then(CaptureRelaxed::enter)
}

/// Whether what comes into this stream is recorded; or will be refused, as the legacy stream may not be used while a stream that waits for
/// it is captured.
#[inline]
pub fn is_under_way(stream: Handle) -> bool {
    if !CAPTURES.load(Relaxed) {
        return false;
    }
    let mut status = 0;
    // SAFETY: the driver writes one integer.
    match unsafe { driver::is_capturing(stream, &raw mut status) } {
        SUCCESS => status != 0,
        code => code == CAPTURE_IMPLICIT,
    }
}

/// Waits until what was given back stream-ordered is back, as far as that spoils no capture: that of any stream of the context ends if
/// the context is waited for. `stream` is in none.
pub fn wait(stream: Handle) {
    // SAFETY: the program's own stream; waiting is what the driver does when it is out of memory.
    unsafe {
        if may_go_on() {
            driver::stream_synchronize(stream);
        } else {
            driver::context_synchronize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_counted_from_begin_to_end() {
        const ILLEGAL_STATE: Status = 401;
        unsafe extern "C" fn begins(_: Handle, mode: i32) -> Status {
            mode
        }
        unsafe extern "C" fn ends(_: Handle, graph: *mut Handle) -> Status {
            graph as usize as Status
        }
        let stream = 0x10 as Handle;
        // SAFETY: functions that only answer.
        let (begin, end) = unsafe {
            let begin = |answer| begin(begins, stream, answer);
            (begin, |answer: Status| end::<false>(ends, stream, answer as usize as *mut Handle))
        };
        assert!(!may_go_on() && leave_alone().is_none());
        assert_eq!((begin(ILLEGAL_STATE), may_go_on()), (ILLEGAL_STATE, false));
        assert_eq!((begin(SUCCESS), begin(SUCCESS)), (SUCCESS, SUCCESS));
        assert_eq!((end(ILLEGAL_STATE), end(CAPTURE_INVALIDATED), may_go_on()), (ILLEGAL_STATE, CAPTURE_INVALIDATED, true));
        assert_eq!((end(SUCCESS), may_go_on()), (SUCCESS, false));
        end(SUCCESS);
        assert!(!may_go_on(), "one end too many is none");
        begin(SUCCESS);
        assert!(take_origin(stream) && !take_origin(stream) && !take_origin(0x20 as Handle));
        end(SUCCESS);
    }
}
