//! Begin and end of stream captures.

use crate::compute::streams;
use crate::memory::objects::captures::{is_under_way, note_origin, one_less, one_more, take_origin};
use vgpu_cuda_abi::cuda::{CAPTURE_INVALIDATED, CAPTURE_UNJOINED, Handle, NOT_SUPPORTED, SUCCESS, Status};

/// Begins a capture in `stream` with `call`.
pub fn begin(call: impl FnOnce() -> Status, stream: Handle) -> Status {
    one_more();
    let status = call();
    if status == SUCCESS {
        note_origin(stream);
    } else {
        one_less();
    }
    status
}

/// `cuStreamBeginCaptureToCig`. What a stream records for a graphics API is started by that API and could not be measured, so it is refused
/// where GPU time is limited.
pub fn begin_for_graphics(call: impl FnOnce() -> Status) -> Status {
    if matches!(streams::limited(), Ok(None)) { call() } else { NOT_SUPPORTED }
}

/// Ends a capture that began in `stream`, also one that was invalidated. `effective` is the stream that the call uses; while it is still
/// being captured, the capture has not ended.
pub fn end(call: impl FnOnce() -> Status, stream: Handle, effective: Handle) -> Status {
    let status = call();
    if matches!(status, SUCCESS | CAPTURE_INVALIDATED | CAPTURE_UNJOINED) && !is_under_way(effective) {
        take_origin(stream);
        one_less();
    }
    status
}

/// Destroys a stream with `call`; a capture that began in it ends with it.
pub fn end_with_stream(stream: Handle, call: impl FnOnce() -> Status) -> Status {
    // The record is taken before the call: afterwards another thread may be given the same handle.
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
