//! Contexts that are made or let go of in rarer ways: green ones, those of OpenGL and VDPAU, and `cuCtxDetach`.

use core::ffi::c_void;

use crate::hooks::contexts;
use crate::loader::driver;
use crate::memory::admission::guard;
use crate::memory::objects::context_table;
use crate::memory::reconcile::overhead;
use crate::session;
use vgpu_cuda_abi::cuda;
use vgpu_cuda_abi::cuda::{Device, Handle, SUCCESS, Status};

/// `cuVDPAUCtxCreate` and `_v2`
pub unsafe fn create_vdpau(
    real: unsafe extern "C" fn(*mut Handle, u32, Device, u32, *mut c_void) -> Status,
    context: *mut Handle,
    flags: u32,
    device: Device,
    vdpau: u32,
    functions: *mut c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { contexts::create_with(context, device, || real(context, flags, device, vdpau, functions)) }
}

/// `cuCtxDetach`: the current context is gone if nobody else was attached to it.
pub unsafe fn detach(real: unsafe extern "C" fn(Handle) -> Status, context: Handle) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { real(context) };
    if status == SUCCESS && driver::current_context() != context {
        contexts::forget(context);
    }
    status
}

/// `cuGreenCtxCreate`: the primary context is there already; what a green one adds is measured.
pub unsafe fn create_green(
    real: unsafe extern "C" fn(*mut Handle, Handle, Device, u32) -> Status,
    green: *mut Handle,
    description: Handle,
    device: Device,
    flags: u32,
) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(green, description, device, flags) };
    // It can be made current, and nobody tells us of that.
    context_table::has_others();
    let session = match session::current() {
        session::State::Ready(session) => session,
        session::State::NotYet => return call(),
        session::State::Refused => return cuda::OPERATING_SYSTEM,
    };
    let Some(gpu) = session.gpu(device).filter(|_| !green.is_null()) else { return call() };
    guard::measured(gpu, call, || {
        // SAFETY: the context was just made, and the program is about to hear that it was not.
        unsafe {
            driver::green_destroy(*green);
            *green = core::ptr::null_mut();
        }
    })
}

/// `cuGreenCtxDestroy`
pub unsafe fn destroy_green(real: unsafe extern "C" fn(Handle) -> Status, green: Handle) -> Status {
    // SAFETY: the program's own argument.
    let status = unsafe { real(green) };
    if status == SUCCESS
        && let Some(session) = session::ready()
    {
        session.gpus().iter().filter(|gpu| gpu.charge.charge.held() != 0).for_each(|gpu| _ = overhead::reconcile(gpu));
    }
    status
}

/// `cuGreenCtxStreamCreate`
pub unsafe fn green_stream(
    real: unsafe extern "C" fn(*mut Handle, Handle, u32, i32) -> Status,
    stream: *mut Handle,
    green: Handle,
    flags: u32,
    priority: i32,
) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(stream, green, flags, priority) };
    match context_table::current() {
        Ok(current) if !stream.is_null() => guard::guard(current.gpu, call, || {
            // SAFETY: the stream was just made, and the program is about to hear that it was not.
            unsafe {
                driver::stream_destroy(*stream);
                *stream = core::ptr::null_mut();
            }
        }),
        _ => call(),
    }
}
