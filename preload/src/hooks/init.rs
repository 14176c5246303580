//! `cuInit`.

use vgpu_region::trace::Kind;

use crate::channels::observe;
use crate::os::clock::monotonic;
use crate::residency::gate;
use crate::session::{State, current};
use crate::trace::{control, sink};
use vgpu_cuda_abi::cuda::{OPERATING_SYSTEM, SUCCESS, Status};

/// Initialises the driver with `call`, then the session. A container whose limits cannot be read gets no GPU.
pub fn init(call: impl FnOnce() -> Status) -> Status {
    observe::begin();
    let begin = monotonic();
    let status = call();
    if status != SUCCESS {
        return status;
    }
    let end = monotonic();
    match current() {
        State::Refused => OPERATING_SYSTEM,
        State::NotYet => SUCCESS,
        State::Ready(session) => {
            control::apply(session);
            gate::make(session);
            sink::span(Kind::Init, 0, begin, end, 0);
            SUCCESS
        }
    }
}
