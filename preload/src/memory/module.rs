//! Modules and libraries: code and global arrays. What an image declares in plain sight is taken before it is loaded; the rest is
//! measured afterwards, and undone if it went past the limit.

use core::ffi::{c_char, c_void};

use vgpu_region::ledger::{PAGE, pages};

use super::account::{self, claim};
use super::heap::Coming;
use super::image::{self, Globals};
use super::known::{self, Current};
use super::{GRANULE, GRANULE_PAGES, SMALL, local, near, refusal, rounded_pages, truth};
use crate::cuda::{Handle, OUT_OF_MEMORY, SUCCESS, Status};
use crate::driver;
use crate::session::Gpu;

/// Makes a call that takes memory for code and globals, so much of it for certain. Near the limit there must be a granule more for code;
/// without that it may still fit, if `undo` can undo it.
pub fn load(globals: Globals, call: impl FnOnce() -> Status, undo: Option<impl FnOnce(&Gpu)>) -> Status {
    let current = match known::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    let gpu = current.gpu;
    let arrays = if globals.bytes > SMALL { rounded_pages(globals.bytes, GRANULE) } else { pages(globals.bytes) };
    let heap = if globals.mallocs { Coming::with_image(current) } else { None };
    let known = heap.map_or(arrays, |heap| arrays.saturating_add(heap.at_once + heap.later));
    let code = if known != 0 && near::is_near(gpu) { GRANULE_PAGES } else { 0 };
    let room = match account::try_claim(gpu, known.saturating_add(code)) {
        Some(room) => Ok(room),
        None => claim(gpu, if undo.is_some() { known } else { known.saturating_add(code) }),
    };
    let room = match room {
        Ok(room) => room,
        Err(status) => return status,
    };
    let before = truth::device_free();
    let status = call();
    if status != SUCCESS {
        room.drop_all();
        return status;
    }
    let (known, at_once, later) = account::together(|| {
        let (at_once, later) = heap.map_or((0, 0), Coming::come);
        let known = arrays.saturating_add(at_once);
        account::add_overhead(gpu, known.saturating_add(later));
        room.settle(known.saturating_add(later));
        (known, at_once, later)
    });
    // Others' allocations change the device's free memory too: then NVML is asked once too often.
    if known != 0 || truth::device_free() < before {
        // What was known is charged already.
        truth::reconcile_after(gpu, before.saturating_sub((u64::from(known) * PAGE) as usize));
    }
    if gpu.account.total.pages() > gpu.limit_pages()
        && let Some(undo) = undo
    {
        undo(gpu);
        if let Some(heap) = heap.filter(|_| at_once != 0) {
            account::release_overhead(gpu, heap.go(later));
        }
        truth::reconcile(gpu);
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
    let Ok(Current { gpu, .. }) = known::current() else { return call() };
    let before = truth::device_free();
    let status = call();
    local::forget();
    if truth::device_free() > before {
        truth::reconcile(gpu);
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
    unsafe { load_module(module, image::if_limited(|| image::globals_in_file(path)), || real(module, path)) }
}

/// `cuModuleLoadData` and `cuModuleLoadFatBinary`
pub unsafe fn load_data(
    real: unsafe extern "C" fn(*mut Handle, *const c_void) -> Status,
    module: *mut Handle,
    data: *const c_void,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe { load_module(module, image::if_limited(|| image::globals(data)), || real(module, data)) }
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
    unsafe { load_module(module, image::if_limited(|| image::globals(data)), || real(module, data, count, options, values)) }
}

/// `cuModuleUnload` and `cuLibraryUnload`
pub unsafe fn unload_handle(real: unsafe extern "C" fn(Handle) -> Status, handle: Handle) -> Status {
    // SAFETY: the program's own argument.
    unload(|| unsafe { real(handle) })
}

/// Makes a call that takes a little memory of the driver's own (a stream, a graph). Far from the limit nobody looks.
pub unsafe fn small_create(real: unsafe extern "C" fn(*mut Handle, u32) -> Status, handle: *mut Handle, flags: u32) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(handle, flags) };
    match known::current() {
        Ok(Current { gpu, .. }) if !handle.is_null() => near::guard(gpu, call, || {
            // SAFETY: the stream was just made, and the program is about to hear that it was not.
            unsafe {
                driver::stream_destroy(*handle);
                *handle = core::ptr::null_mut();
            }
        }),
        _ => call(),
    }
}

/// The same with a priority.
pub unsafe fn small_create_with_priority(
    real: unsafe extern "C" fn(*mut Handle, u32, i32) -> Status,
    handle: *mut Handle,
    flags: u32,
    priority: i32,
) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(handle, flags, priority) };
    match known::current() {
        Ok(Current { gpu, .. }) if !handle.is_null() => near::guard(gpu, call, || {
            // SAFETY: as above.
            unsafe {
                driver::stream_destroy(*handle);
                *handle = core::ptr::null_mut();
            }
        }),
        _ => call(),
    }
}
