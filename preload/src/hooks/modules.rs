//! Modules: code and global arrays. What an image declares is claimed before it is loaded. The rest is measured afterwards, and the load is
//! undone if it went past the limit.

use vgpu_region::ledger::{PAGE, pages};

use crate::image::{self, Globals};
use crate::loader::driver;
use crate::memory::admission::acquire::stay_within_limit;
use crate::memory::admission::claim::claim;
use crate::memory::admission::near_limit;
use crate::memory::admission::target::with_current;
use crate::memory::granules::{GRANULE, GRANULE_PAGES, SMALL, rounded_pages};
use crate::memory::ledger::account::Claim;
use crate::memory::ledger::{account, changes, watermark};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::heap::Coming;
use crate::memory::objects::{checked_functions, context_table};
use crate::memory::reconcile::{driver_view, overhead};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{Handle, SUCCESS, Status};

/// Makes a call that takes memory for code and globals, of which `globals` is known before. Near the limit a granule more is claimed for
/// code. If that does not fit, the image may still fit, and is loaded where `undo` can unload it.
pub fn load_image(call: impl FnOnce() -> Status, globals: Globals, undo: Option<impl FnOnce()>) -> Status {
    with_current(call, |current, call| {
        let gpu = current.gpu;
        let arrays = if globals.bytes > SMALL { rounded_pages(globals.bytes, GRANULE) } else { pages(globals.bytes) };
        let heap = if globals.mallocs { Coming::with_image(current) } else { None };
        let known = heap.map_or(arrays, |heap| arrays.saturating_add(heap.at_once + heap.later));
        let room = match claim_room(gpu, known, undo.is_some()) {
            Ok(room) => room,
            Err(status) => return status,
        };
        let before = driver_view::device_free();
        let status = call();
        if status != SUCCESS {
            room.drop_all();
            return status;
        }
        let (taken, at_once, later) = changes::together(|| {
            let (at_once, later) = heap.map_or((0, 0), Coming::come);
            let taken = arrays.saturating_add(at_once);
            account::add_overhead(gpu, taken.saturating_add(later));
            room.settle(taken.saturating_add(later));
            (taken, at_once, later)
        });
        // Other processes change the device's free memory too: then NVML is asked in vain.
        if taken != 0 || driver_view::device_free() < before {
            // The known part is charged already.
            overhead::reconcile_after(gpu, before.saturating_sub((u64::from(taken) * PAGE) as usize));
        }
        let Some(undo) = undo else { return SUCCESS };
        stay_within_limit(gpu, GRANULE_PAGES, || {
            undo();
            if let Some(heap) = heap.filter(|_| at_once != 0) {
                account::release_overhead(gpu, heap.go(later));
            }
        })
    })
}

/// Claims `known` pages, and near the limit a granule for code. Without room for that granule an image that can be unloaded gets its known
/// pages only.
fn claim_room(gpu: &Gpu, known: u32, can_undo: bool) -> Result<Claim<'_>, Status> {
    let code = if known != 0 && watermark::is_near(gpu) { GRANULE_PAGES } else { 0 };
    let with_code = known.saturating_add(code);
    near_limit::try_claim(gpu, with_code).map_or_else(|| claim(gpu, if can_undo { known } else { with_code }), Ok)
}

/// Makes a call that takes memory for code which nothing gives back: `globals` are claimed, code only counts.
pub fn load_for_good(call: impl FnOnce() -> Status, globals: Globals) -> Status {
    load_image(call, globals, None::<fn()>)
}

/// Looks up a function or a global of a module. With lazy loading this is where its code is loaded.
pub fn load_lazily(call: impl FnOnce() -> Status) -> Status {
    load_for_good(call, Globals::NONE)
}

/// Loads a module. `read` reads its image, and is called only under a memory limit.
pub unsafe fn load(call: impl FnOnce() -> Status, module: *mut Handle, read: impl FnOnce() -> Globals) -> Status {
    if module.is_null() {
        return call();
    }
    // SAFETY: the module was just loaded, and the program has not seen it.
    let undo = || unsafe { driver::discard(module, driver::module_unload) };
    load_image(call, image::if_limited(read), Some(undo))
}

/// Unloads a module or a library, which may give memory back.
pub fn unload(call: impl FnOnce() -> Status) -> Status {
    let Ok(Current { gpu, .. }) = context_table::current() else { return call() };
    let before = driver_view::device_free();
    let status = call();
    checked_functions::forget();
    if driver_view::device_free() > before {
        overhead::reconcile(gpu);
    }
    status
}
