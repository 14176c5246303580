//! Libraries. A library is loaded into a context when something of it is first used there.
//!
//! What its image declares is claimed before the first use, which is refused if that does not fit. The code that a first use loads cannot
//! be unloaded, so it only counts: the next request is refused.

use core::sync::atomic::Ordering::Relaxed;

use crate::hooks::modules;
use crate::image::{self, Globals};
use crate::loader::driver;
use crate::memory::objects::libraries::{GLOBALS, KERNELS, LOADED, is_in, key, pack, unpack};
use crate::memory::objects::{captures, context_table};
use vgpu_cuda_abi::cuda::{Handle, OUT_OF_MEMORY, SUCCESS, Status};

/// Makes a call that loads `library` into the current context unless it is there already.
pub fn load_in_context(call: impl FnOnce() -> Status, library: Handle) -> Status {
    let Ok(current) = context_table::current() else { return call() };
    let key = key(library, current.id);
    let is_loaded = is_in(library, current);
    let globals = GLOBALS.get(library as u64).filter(|_| !is_loaded).map_or(Globals::NONE, |globals| unpack(globals.load(Relaxed)));
    let status = modules::load_for_good(call, globals);
    if status == SUCCESS && !is_loaded && LOADED.get(key).is_none() {
        LOADED.insert(key, 1);
    }
    status
}

/// Loads a kernel's library into the current context before the kernel's first launch. Does nothing for other functions.
///
/// # Errors
/// Returns CUDA's out-of-memory code if the library does not fit.
pub fn before_launch(kernel: Handle) -> Result<(), Status> {
    let Some(library) = library_of(kernel) else { return Ok(()) };
    let Ok(current) = context_table::current() else { return Ok(()) };
    if is_in(library, current) {
        return Ok(());
    }
    let mut module = core::ptr::null_mut();
    // The first launch may be captured, and loading the library must not end that capture.
    let _relaxed = captures::leave_alone();
    // SAFETY: a library that the program has; the driver writes one handle.
    match load_in_context(|| unsafe { driver::library_module(&raw mut module, library) }, library) {
        OUT_OF_MEMORY => Err(OUT_OF_MEMORY),
        // The launch reports any other error.
        _ => Ok(()),
    }
}

/// Returns a kernel's library; `None` for a function of a module.
fn library_of(kernel: Handle) -> Option<Handle> {
    KERNELS.get(kernel as u64).map(|library| library.load(Relaxed) as Handle)
}

/// Records a kernel's library.
fn record_kernel(kernel: Handle, library: Handle) {
    match KERNELS.get(kernel as u64) {
        Some(known) => known.store(library as u64, Relaxed),
        None => _ = KERNELS.insert(kernel as u64, library as u64),
    }
}

/// Looks up a kernel.
pub unsafe fn kernel(call: impl FnOnce() -> Status, kernel: *const Handle, library: Handle) -> Status {
    let status = call();
    if status == SUCCESS {
        // SAFETY: the driver has just written it.
        record_kernel(unsafe { *kernel }, library);
    }
    status
}

/// Lists the kernels of a library.
pub unsafe fn kernels(call: impl FnOnce() -> Status, list: *mut Handle, count: u32, library: Handle) -> Status {
    if list.is_null() {
        return call();
    }
    // The driver may write fewer kernels than there is room for.
    // SAFETY: the caller's promise.
    unsafe { core::ptr::write_bytes(list, 0, count as usize) };
    let status = call();
    if status == SUCCESS {
        // SAFETY: zeroed above.
        let list = unsafe { core::slice::from_raw_parts(list, count as usize) };
        list.iter().filter(|kernel| !kernel.is_null()).for_each(|&kernel| record_kernel(kernel, library));
    }
    status
}

/// Loads a library. `read` reads its image, and is called only under a memory limit. An image that cannot be read is loaded into the
/// current context at once, where that can be undone; without a context that waits for the first use.
pub unsafe fn load(call: impl FnOnce() -> Status, library: *mut Handle, read: impl FnOnce() -> Globals) -> Status {
    if library.is_null() {
        return call();
    }
    let globals = image::if_limited(read);
    let mut is_here = false;
    let call = || {
        let (status, mut module) = (call(), core::ptr::null_mut());
        // SAFETY: the driver has just written the handle, and writes another.
        is_here = status == SUCCESS && !globals.exact && unsafe { driver::library_module(&raw mut module, *library) } == SUCCESS;
        status
    };
    // SAFETY: the library was just loaded, and the program has not seen it.
    let undo = || unsafe { driver::discard(library, driver::library_unload) };
    let at_once = Globals { mallocs: globals.mallocs && !globals.exact, ..Globals::NONE };
    let status = modules::load_image(call, at_once, Some(undo));
    if status != SUCCESS {
        return status;
    }
    // SAFETY: the driver has just written the handle.
    let handle = unsafe { *library };
    if pack(globals) != 0 {
        GLOBALS.insert(handle as u64, pack(globals));
    }
    if is_here && let Ok(current) = context_table::current() {
        LOADED.insert(key(handle, current.id), 1);
    }
    status
}

/// Unloads a library.
pub fn unload(call: impl FnOnce() -> Status, library: Handle) -> Status {
    // Removed before the call: afterwards another thread may be given the same handles.
    let globals = GLOBALS.remove(library as u64);
    let loaded = LOADED.iter().map(|(key, _)| key).filter(|key| key & ((1 << 48) - 1) == library as u64);
    loaded.for_each(|key| _ = LOADED.remove(key));
    let kernels = KERNELS.iter().filter(|(_, of)| of.load(Relaxed) == library as u64).map(|(kernel, _)| kernel);
    kernels.for_each(|kernel| _ = KERNELS.remove(kernel));
    let status = modules::unload(call);
    if let (Some(globals), true) = (globals, status != SUCCESS) {
        GLOBALS.insert(library as u64, globals);
    }
    status
}

/// Makes a call that loads a kernel, with its library, into the current context.
pub fn load_kernel(call: impl FnOnce() -> Status, kernel: Handle) -> Status {
    match library_of(kernel) {
        Some(library) => load_in_context(call, library),
        None => modules::load_lazily(call),
    }
}
