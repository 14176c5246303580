//! Making and destroying streams.

use crate::compute::pacing::interrupt;
use crate::compute::streams;
use crate::hooks::{capture, ordered};
use crate::loader::driver;
use crate::memory::admission::guard;
use crate::memory::objects::context_table;
use crate::memory::objects::context_table::Current;
use vgpu_cuda_abi::cuda::{Handle, Status};

/// `cuStreamDestroy` and `cuStreamDestroy_v2`
pub unsafe fn stream_destroy(real: unsafe extern "C" fn(Handle) -> Status, stream: Handle) -> Status {
    if let Some(state) = streams::known() {
        interrupt(stream);
        state.retire(stream);
    }
    // SAFETY: the program's own argument.
    capture::ending(stream, || unsafe { ordered::after_wait(real, stream) })
}

/// Makes a call that takes a little memory of the driver's own (a stream, a graph). Far from the limit nobody looks.
pub unsafe fn small_create(real: unsafe extern "C" fn(*mut Handle, u32) -> Status, handle: *mut Handle, flags: u32) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(handle, flags) };
    match context_table::current() {
        Ok(Current { gpu, .. }) if !handle.is_null() => guard::guard(gpu, call, || {
            // SAFETY: the stream was just made, and the program is about to hear that it was not.
            unsafe {
                driver::stream_destroy(*handle);
                *handle = core::ptr::null_mut();
            }
        }),
        _ => call(),
    }
}

/// The same with a priority.
pub unsafe fn small_create_with_priority(
    real: unsafe extern "C" fn(*mut Handle, u32, i32) -> Status,
    handle: *mut Handle,
    flags: u32,
    priority: i32,
) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(handle, flags, priority) };
    match context_table::current() {
        Ok(Current { gpu, .. }) if !handle.is_null() => guard::guard(gpu, call, || {
            // SAFETY: as above.
            unsafe {
                driver::stream_destroy(*handle);
                *handle = core::ptr::null_mut();
            }
        }),
        _ => call(),
    }
}
