//! Green contexts: parts of a device's primary context with multiprocessors of their own.

use crate::loader::driver;
use crate::memory::admission::guard;
use crate::memory::admission::target::with_device;
use crate::memory::objects::context_table;
use crate::memory::reconcile::overhead;
use crate::session;
use vgpu_cuda_abi::cuda::{Device, Handle, SUCCESS, Status};

/// Creates a green context. The primary context exists already; what the green one adds is measured.
pub unsafe fn create(call: impl FnOnce() -> Status, green: *mut Handle, device: Device) -> Status {
    // The program can make it current with a call that is not intercepted.
    context_table::has_others();
    if green.is_null() {
        return call();
    }
    // SAFETY: the context was just created, and the program has not seen it.
    let undo = || unsafe { driver::discard(green, driver::green_destroy) };
    with_device(device, call, |gpu, call| guard::measured(gpu, call, undo))
}

/// Destroys a green context. Only NVML can tell what that gave back, and on which GPU.
pub fn destroy(call: impl FnOnce() -> Status) -> Status {
    let status = call();
    if status == SUCCESS
        && let Some(session) = session::ready()
    {
        session.gpus().iter().filter(|gpu| gpu.charge.charge.held() != 0).for_each(|gpu| _ = overhead::reconcile(gpu));
    }
    status
}
