//! The end of a context: what ran in it is charged, then what it held is given back.

use crate::compute::streams;
use crate::hooks::contexts;
use crate::os::clock;
use vgpu_cuda_abi::cuda::{Device, Handle, Status};

/// Ends a context with `call`. Whoever destroys one waits for what runs in it, so what that is found to take is known.
fn ending(context: Handle, call: impl FnOnce() -> Status) -> Status {
    let left = streams::known().and_then(|state| state.close(context));
    let began = clock::monotonic();
    let status = call();
    if let Some((account, expected)) = left
        && let Some(rate) = account.rate()
    {
        let took = clock::monotonic().saturating_sub(began);
        account.charge(took.saturating_sub(expected) as i64, rate);
    }
    status
}

/// `cuCtxDestroy` and `cuCtxDestroy_v2`
pub unsafe fn context_destroy(real: unsafe extern "C" fn(Handle) -> Status, context: Handle) -> Status {
    // SAFETY: the program's own argument.
    ending(context, || unsafe { contexts::destroy(real, context) })
}

/// `cuDevicePrimaryCtxRelease` and `cuDevicePrimaryCtxReset`. The context may stay, if others hold it; its meter then starts anew.
pub unsafe fn primary_release(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the program's own argument.
    let call = || unsafe { contexts::release_primary(real, device) };
    let context = if streams::known().is_some() { contexts::active_primary(device) } else { core::ptr::null_mut() };
    if context.is_null() { call() } else { ending(context, call) }
}
