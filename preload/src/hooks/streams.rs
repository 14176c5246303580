//! Creation and destruction of streams.

use crate::compute::pacing::interrupt;
use crate::compute::streams;
use crate::hooks::{capture, sync};
use crate::loader::driver;
use crate::memory::admission::guard;
use crate::memory::objects::context_table;
use crate::memory::objects::context_table::Current;
use vgpu_cuda_abi::cuda::{Handle, Status};

/// Destroys a stream.
pub fn destroy(call: impl FnOnce() -> Status, stream: Handle) -> Status {
    if let Some(state) = streams::known() {
        interrupt(stream);
        state.retire(stream);
    }
    capture::end_with_stream(stream, || sync::settle_after(call))
}

/// Creates a stream, which takes a little memory of the driver's own. That memory is measured only near the limit.
pub unsafe fn create(call: impl FnOnce() -> Status, stream: *mut Handle) -> Status {
    match context_table::current() {
        Ok(Current { gpu, .. }) if !stream.is_null() => {
            // SAFETY: the stream was just created, and the program has not seen it.
            guard::guard(gpu, call, || unsafe { driver::discard(stream, driver::stream_destroy) })
        }
        _ => call(),
    }
}
