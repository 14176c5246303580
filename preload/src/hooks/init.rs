//! `cuInit`.

use vgpu_region::trace::Kind;

use crate::os::clock::monotonic;
use crate::session::{State, current};
use crate::trace::{control, sink};
use vgpu_cuda_abi::cuda::{OPERATING_SYSTEM, SUCCESS, Status};

/// `cuInit`: the driver's, then ours. A container whose limits cannot be known gets no GPU.
pub unsafe fn init(real: unsafe extern "C" fn(u32) -> Status, flags: u32) -> Status {
    let began = monotonic();
    // SAFETY: the program's own argument.
    let status = unsafe { real(flags) };
    if status != SUCCESS {
        return status;
    }
    let ended = monotonic();
    match current() {
        State::Refused => OPERATING_SYSTEM,
        State::NotYet => SUCCESS,
        State::Ready(session) => {
            control::look(session);
            sink::span(Kind::Init, 0, began, ended, 0);
            SUCCESS
        }
    }
}
