//! The end of a context: the work that ran in it is charged, then its memory is given back.

use crate::compute::streams;
use crate::hooks::contexts;
use crate::loader::driver;
use crate::os::clock;
use vgpu_cuda_abi::cuda::{Device, Handle, SUCCESS, Status};

/// Ends a context with `call`. The call waits for what runs in the context, so its duration says how long that took, without
/// the time for which the process's channels were off.
fn charge_rest(call: impl FnOnce() -> Status, context: Handle) -> Status {
    let rest = streams::known().and_then(|state| state.close(context));
    let begin = clock::monotonic();
    let status = call();
    if let Some((account, expected)) = rest
        && let Some(rate) = account.rate()
    {
        let end = clock::monotonic();
        let took = end.saturating_sub(begin).saturating_sub(account.off_times.between(begin, end));
        account.charge(took.saturating_sub(expected) as i64, rate);
    }
    status
}

/// Destroys a context.
pub fn destroy(call: impl FnOnce() -> Status, context: Handle) -> Status {
    charge_rest(|| contexts::destroy(call, context), context)
}

/// Releases or resets a primary context. The context stays while others retain it; its meter then starts anew.
pub fn release_primary(call: impl FnOnce() -> Status, device: Device) -> Status {
    let call = || contexts::release_primary(call, device);
    let context = if streams::known().is_some() { contexts::active_primary(device) } else { core::ptr::null_mut() };
    if context.is_null() { call() } else { charge_rest(call, context) }
}

/// Detaches the current context, which ends it unless something else is attached to it.
pub fn detach(call: impl FnOnce() -> Status, context: Handle) -> Status {
    let status = call();
    if status == SUCCESS && driver::current_context() != context {
        contexts::forget(context);
    }
    status
}
