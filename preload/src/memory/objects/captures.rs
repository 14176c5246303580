//! Stream captures. During a capture its streams and pools may not be queried, and calls that would invalidate a capture are left out.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use crate::loader::driver::{self, CaptureRelaxed};
use crate::os::clock;
use vgpu_cuda_abi::cuda::{CAPTURE_IMPLICIT, Handle, SUCCESS, Status};

/// Set by the first capture of the process. Until then no stream needs to be asked.
static CAPTURES: AtomicBool = AtomicBool::new(false);
/// Number of captures that have begun and not ended; at least that many.
static GOING_ON: AtomicU32 = AtomicU32::new(0);
/// Number of waits for a context that are under way. A capture begins after them, as they would invalidate it.
static WAITS: AtomicU32 = AtomicU32::new(0);
/// Sleep between two looks at [`WAITS`], in nanoseconds.
const LOOK_NS: i64 = 20_000;
/// Longest wait for [`WAITS`], in nanoseconds. The work that is waited for may itself wait for the thread that begins a capture.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Streams in which captures began, as far as there is room. Streams that joined a capture may be created and destroyed during it: NCCL's
/// are.
static ORIGINS: [AtomicPtr<c_void>; 64] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 64];

/// Records that a capture began in this stream.
pub fn note_origin(stream: Handle) {
    _ = ORIGINS.iter().find(|origin| origin.compare_exchange(core::ptr::null_mut(), stream, AcqRel, Relaxed).is_ok());
}

/// Returns true if a capture began in this stream, and removes the record.
pub fn take_origin(stream: Handle) -> bool {
    let take = |origin: &AtomicPtr<c_void>| origin.compare_exchange(stream, core::ptr::null_mut(), AcqRel, Relaxed).is_ok();
    !stream.is_null() && ORIGINS.iter().any(take)
}

/// Records the begin of a capture, once no wait for a context is under way.
pub fn one_more() {
    CAPTURES.store(true, Relaxed);
    GOING_ON.fetch_add(1, SeqCst);
    if WAITS.load(SeqCst) != 0 {
        let begin = clock::monotonic();
        while WAITS.load(SeqCst) != 0 && clock::monotonic().saturating_sub(begin) < PATIENCE_NS {
            clock::nap(LOOK_NS);
        }
    }
}

/// Records the end of a capture.
pub fn one_less() {
    _ = GOING_ON.fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1));
}

/// Returns true if the process has ever begun a capture.
#[inline]
pub fn has_begun() -> bool {
    CAPTURES.load(Relaxed)
}

/// Returns true while a stream of the process may be in capture.
#[inline]
pub fn may_go_on() -> bool {
    GOING_ON.load(Acquire) != 0
}

/// While the returned guard lives, calls of the library that might wait invalidate no capture.
#[inline]
pub fn leave_alone() -> Option<CaptureRelaxed> {
    may_go_on().then(CaptureRelaxed::enter)
}

/// Returns true if work in this stream is captured, or will be refused because the legacy stream may not be used while a stream that waits
/// for it is captured.
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

/// Waits for the work in the current context. Returns `None` at once if a capture may be going on, which a wait would invalidate.
pub fn wait_for_context() -> Option<Status> {
    // Counted before the look at the captures, which are counted before a look at the waits: one of the two sees the other.
    WAITS.fetch_add(1, SeqCst);
    // SAFETY: the call takes nothing.
    let status = (GOING_ON.load(SeqCst) == 0).then(|| unsafe { driver::context_synchronize() });
    WAITS.fetch_sub(1, SeqCst);
    status
}

/// Waits for stream-ordered frees: of the context, or only of `stream` while a capture may be going on. `stream` is in no capture.
pub fn wait(stream: Handle) {
    if wait_for_context().is_none() {
        // SAFETY: the program's own stream; waiting is what the driver does when it is out of memory.
        unsafe { driver::stream_synchronize(stream) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::capture::begin;
    use crate::hooks::capture::end;
    use vgpu_cuda_abi::cuda::CAPTURE_INVALIDATED;
    use vgpu_cuda_abi::cuda::Handle;
    use vgpu_cuda_abi::cuda::SUCCESS;
    use vgpu_cuda_abi::cuda::Status;

    #[test]
    fn captures_are_counted_from_begin_to_end() {
        const ILLEGAL_STATE: Status = 401;
        let stream = 0x10 as Handle;
        let begin = |answer: Status| begin(|| answer, stream);
        let end = |answer: Status| end(|| answer, stream, stream);
        assert!(!may_go_on() && leave_alone().is_none());
        assert_eq!((begin(ILLEGAL_STATE), may_go_on()), (ILLEGAL_STATE, false));
        assert_eq!((begin(SUCCESS), begin(SUCCESS)), (SUCCESS, SUCCESS));
        assert_eq!((end(ILLEGAL_STATE), end(CAPTURE_INVALIDATED), may_go_on()), (ILLEGAL_STATE, CAPTURE_INVALIDATED, true));
        assert_eq!((end(SUCCESS), may_go_on()), (SUCCESS, false));
        end(SUCCESS);
        assert!(!may_go_on(), "an end without a capture is ignored");
        begin(SUCCESS);
        assert!(take_origin(stream) && !take_origin(stream) && !take_origin(0x20 as Handle));
        end(SUCCESS);
    }
}
