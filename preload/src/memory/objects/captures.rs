//! Streams that are being captured: nothing may be asked of them, nor of a pool meanwhile; and what would spoil a capture is not done while
//! one goes on.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use crate::loader::driver;
use crate::loader::driver::CaptureRelaxed;
use vgpu_cuda_abi::cuda::{CAPTURE_IMPLICIT, Handle, SUCCESS};

/// Set when the process first captures a stream: others need not ask.
pub static CAPTURES: AtomicBool = AtomicBool::new(false);
/// Captures that have begun and not ended; rather too many than too few.
pub static GOING_ON: AtomicU32 = AtomicU32::new(0);
/// The streams that they began in, as far as there is room. Others that joined may come and go: NCCL's do.
static ORIGINS: [AtomicPtr<c_void>; 64] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 64];

pub fn note_origin(stream: Handle) {
    _ = ORIGINS.iter().find(|origin| origin.compare_exchange(core::ptr::null_mut(), stream, AcqRel, Relaxed).is_ok());
}

/// Whether a capture began in this stream. It is forgotten.
pub fn take_origin(stream: Handle) -> bool {
    let take = |origin: &AtomicPtr<c_void>| origin.compare_exchange(stream, core::ptr::null_mut(), AcqRel, Relaxed).is_ok();
    !stream.is_null() && ORIGINS.iter().any(take)
}

pub fn one_less() {
    _ = GOING_ON.fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1));
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
    use crate::hooks::capture::begin;
    use crate::hooks::capture::end;
    use vgpu_cuda_abi::cuda::CAPTURE_INVALIDATED;
    use vgpu_cuda_abi::cuda::Handle;
    use vgpu_cuda_abi::cuda::SUCCESS;
    use vgpu_cuda_abi::cuda::Status;

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
