//! Calls whose cost is measured afterwards, and undone if it went past the limit.

use vgpu_region::ledger::pages;

use crate::memory::admission::claim::claim;
use crate::memory::admission::refusal;
use crate::memory::admission::refusal::refuse;
use crate::memory::granules::{GRANULE, GRANULE_PAGES};
use crate::memory::ledger::watermark::{is_near, something_unmeasured};
use crate::memory::objects::context_table;
use crate::memory::objects::context_table::Current;
use crate::memory::reconcile::{driver_view, overhead};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{OUT_OF_MEMORY, SUCCESS, Status};

/// Guards a call that takes a little memory of its own for its purposes (a stream, a module, a graph): far from the limit it just
/// runs; near it, what it takes is measured, and if that went past the limit, undone.
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
    if status == SUCCESS && gpu.account.total.pages() > gpu.limit_pages() {
        undo();
        overhead::reconcile(gpu);
        refuse(gpu, GRANULE_PAGES);
        return OUT_OF_MEMORY;
    }
    status
}

/// Makes a call that takes memory nobody can tell beforehand: measured, and undone if it went past the limit.
pub fn measured(gpu: &Gpu, call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    let before = driver_view::device_free();
    let status = call();
    if status != SUCCESS {
        return status;
    }
    overhead::reconcile_after(gpu, before);
    if gpu.account.total.pages() <= gpu.limit_pages() {
        return SUCCESS;
    }
    undo();
    overhead::reconcile(gpu);
    refusal::refuse(gpu, pages(GRANULE));
    OUT_OF_MEMORY
}

pub fn measured_here(call: impl FnOnce() -> Status, undo: impl FnOnce()) -> Status {
    match context_table::current() {
        Ok(Current { gpu, .. }) => measured(gpu, call, undo),
        Err(None) => call(),
        Err(Some(status)) => status,
    }
}
