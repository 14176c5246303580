//! Modules and libraries: code and global arrays. What an image declares in plain sight is taken before it is loaded; the rest is
//! measured afterwards, and undone if it went past the limit.

use core::ffi::{c_char, c_void};

use vgpu_region::ledger::{PAGE, pages};

use crate::image::globals::Globals;
use crate::image::reader;
use crate::loader::driver;
use crate::memory::admission::claim::claim;
use crate::memory::admission::{near_limit, refusal};
use crate::memory::granules::{GRANULE, GRANULE_PAGES, SMALL, rounded_pages};
use crate::memory::ledger::{account, changes, watermark};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::heap::Coming;
use crate::memory::objects::{checked_functions, context_table};
use crate::memory::reconcile::{driver_view, overhead};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{Handle, OUT_OF_MEMORY, SUCCESS, Status};

/// Makes a call that takes memory for code and globals, so much of it for certain. Near the limit there must be a granule more for code;
/// without that it may still fit, if `undo` can undo it.
pub fn load(globals: Globals, call: impl FnOnce() -> Status, undo: Option<impl FnOnce(&Gpu)>) -> Status {
    let current = match context_table::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    let gpu = current.gpu;
    let arrays = if globals.bytes > SMALL { rounded_pages(globals.bytes, GRANULE) } else { pages(globals.bytes) };
    let heap = if globals.mallocs { Coming::with_image(current) } else { None };
    let known = heap.map_or(arrays, |heap| arrays.saturating_add(heap.at_once + heap.later));
    let code = if known != 0 && watermark::is_near(gpu) { GRANULE_PAGES } else { 0 };
    let room = match near_limit::try_claim(gpu, known.saturating_add(code)) {
        Some(room) => Ok(room),
        None => claim(gpu, if undo.is_some() { known } else { known.saturating_add(code) }),
    };
    let room = match room {
        Ok(room) => room,
        Err(status) => return status,
    };
    let before = driver_view::device_free();
    let status = call();
    if status != SUCCESS {
        room.drop_all();
        return status;
    }
    let (known, at_once, later) = changes::together(|| {
        let (at_once, later) = heap.map_or((0, 0), Coming::come);
        let known = arrays.saturating_add(at_once);
        account::add_overhead(gpu, known.saturating_add(later));
        room.settle(known.saturating_add(later));
        (known, at_once, later)
    });
    // Others' allocations change the device's free memory too: then NVML is asked once too often.
    if known != 0 || driver_view::device_free() < before {
        // What was known is charged already.
        overhead::reconcile_after(gpu, before.saturating_sub((u64::from(known) * PAGE) as usize));
    }
    if gpu.account.total.pages() > gpu.limit_pages()
        && let Some(undo) = undo
    {
        undo(gpu);
        if let Some(heap) = heap.filter(|_| at_once != 0) {
            account::release_overhead(gpu, heap.go(later));
        }
        overhead::reconcile(gpu);
        refusal::refuse(gpu, pages(GRANULE));
        return OUT_OF_MEMORY;
    }
    SUCCESS
}

/// Makes a call that takes memory for code which nothing gives back; it only counts.
pub fn load_for_good(globals: Globals, call: impl FnOnce() -> Status) -> Status {
    load(globals, call, None::<fn(&Gpu)>)
}

/// Makes a call that may give memory for code and globals back.
fn unload(call: impl FnOnce() -> Status) -> Status {
    let Ok(Current { gpu, .. }) = context_table::current() else { return call() };
    let before = driver_view::device_free();
    let status = call();
    checked_functions::forget();
    if driver_view::device_free() > before {
        overhead::reconcile(gpu);
    }
    status
}

unsafe fn load_module(module: *mut Handle, globals: Globals, call: impl FnOnce() -> Status) -> Status {
    if module.is_null() {
        return call();
    }
    let undo = |_: &Gpu| {
        // SAFETY: the module was just loaded, and the program is about to hear that it was not.
        unsafe {
            driver::module_unload(*module);
            *module = core::ptr::null_mut();
        }
    };
    load(globals, call, Some(undo))
}

/// `cuModuleLoad`
pub unsafe fn load_file(
    real: unsafe extern "C" fn(*mut Handle, *const c_char) -> Status,
    module: *mut Handle,
    path: *const c_char,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { load_module(module, reader::if_limited(|| reader::globals_in_file(path)), || real(module, path)) }
}

/// `cuModuleLoadData` and `cuModuleLoadFatBinary`
pub unsafe fn load_data(
    real: unsafe extern "C" fn(*mut Handle, *const c_void) -> Status,
    module: *mut Handle,
    data: *const c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { load_module(module, reader::if_limited(|| reader::globals(data)), || real(module, data)) }
}

/// `cuModuleLoadDataEx`
pub unsafe fn load_data_ex(
    real: unsafe extern "C" fn(*mut Handle, *const c_void, u32, *mut i32, *mut *mut c_void) -> Status,
    module: *mut Handle,
    data: *const c_void,
    count: u32,
    options: *mut i32,
    values: *mut *mut c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { load_module(module, reader::if_limited(|| reader::globals(data)), || real(module, data, count, options, values)) }
}

/// `cuModuleUnload` and `cuLibraryUnload`
pub unsafe fn unload_handle(real: unsafe extern "C" fn(Handle) -> Status, handle: Handle) -> Status {
    // SAFETY: the program's own argument.
    unload(|| unsafe { real(handle) })
}
