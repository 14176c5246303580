//! The GPU that a call is about.

use crate::memory::objects::context_table::{self, Current};
use crate::session::{self, Gpu, State};
use vgpu_cuda_abi::cuda::{Device, OPERATING_SYSTEM, Status};

/// Runs `with` for the current context. Without a context the driver answers `call`; where the limits cannot be read, the call is refused.
#[inline]
pub fn with_current<Call: FnOnce() -> Status>(call: Call, with: impl FnOnce(Current, Call) -> Status) -> Status {
    match context_table::current() {
        Ok(current) => with(current, call),
        Err(None) => call(),
        Err(Some(status)) => status,
    }
}

/// Runs `with` for the GPU with the ordinal `device`. For other ordinals, and before the driver is initialised, the driver answers `call`;
/// where the limits cannot be read, the call is refused.
pub fn with_device<Call: FnOnce() -> Status>(device: Device, call: Call, with: impl FnOnce(&'static Gpu, Call) -> Status) -> Status {
    match session::current() {
        State::Ready(session) => match session.gpu(device) {
            Some(gpu) => with(gpu, call),
            None => call(),
        },
        State::NotYet => call(),
        State::Refused => OPERATING_SYSTEM,
    }
}
