//! Creation and destruction of streams.

use crate::compute::pacing::interrupt;
use crate::compute::streams;
use crate::hooks::{capture, ordered};
use crate::loader::driver;
use crate::memory::admission::guard;
use crate::memory::objects::context_table;
use crate::memory::objects::context_table::Current;
use vgpu_cuda_abi::cuda::{Handle, Status};

/// Destroys a stream.
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, stream: Handle) -> Status {
    if let Some(state) = streams::known() {
        interrupt(stream);
        state.retire(stream);
    }
    // SAFETY: the program's own argument.
    capture::end_with_stream(stream, || unsafe { ordered::after_wait(real, stream) })
}

/// Creates a stream, which takes a little memory of the driver's own. That memory is measured only near the limit.
///
/// # Safety
/// `stream` is null, or the driver writes a handle there.
pub unsafe fn create(call: impl FnOnce() -> Status, stream: *mut Handle) -> Status {
    match context_table::current() {
        Ok(Current { gpu, .. }) if !stream.is_null() => guard::guard(gpu, call, || {
            // SAFETY: the stream was just created, and the program has not seen it.
            unsafe {
                driver::stream_destroy(*stream);
                *stream = core::ptr::null_mut();
            }
        }),
        _ => call(),
    }
}
