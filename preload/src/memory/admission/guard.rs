//! Calls whose size is unknown before: measured by NVML, and undone if they went past the limit.

use crate::memory::admission::acquire::stay_within_limit;
use crate::memory::admission::claim::claim;
use crate::memory::granules::GRANULE_PAGES;
use crate::memory::ledger::watermark::{is_near, something_unmeasured};
use crate::memory::reconcile::{driver_view, overhead};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{OUT_OF_MEMORY, SUCCESS, Status};

/// Makes a call that takes a little memory for the driver's own purposes (a stream, a graph). Far from the limit it only runs. Near the
/// limit a granule must be left, and the call is measured, and undone if it went past the limit.
pub fn guard(gpu: &Gpu, call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    if !is_near(gpu) {
        something_unmeasured(gpu);
        return call();
    }
    overhead::reconcile(gpu);
    let Ok(room) = claim(gpu, GRANULE_PAGES) else { return OUT_OF_MEMORY };
    let before = driver_view::device_free();
    let status = call();
    room.drop_all();
    overhead::reconcile_after(gpu, before);
    if status == SUCCESS { stay_within_limit(gpu, GRANULE_PAGES, undo) } else { status }
}

/// Makes a call that takes memory of any size: measured, and undone if it went past the limit.
pub fn measured(gpu: &Gpu, call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    let before = driver_view::device_free();
    let status = call();
    if status != SUCCESS {
        return status;
    }
    overhead::reconcile_after(gpu, before);
    stay_within_limit(gpu, GRANULE_PAGES, undo)
}
