//! Libraries, which are loaded into a context when something of theirs is first used there, and functions, which may be loaded late.
//!
//! What an image declares in plain sight is taken before the first use, which is refused if that does not fit. What else a first use
//! takes (code) cannot be undone, so it only counts: the next request is refused.

use core::ffi::{c_char, c_void};
use core::sync::atomic::Ordering::Relaxed;

use crate::hooks::modules;
use crate::image::globals::Globals;
use crate::image::reader;
use crate::loader::driver;
use crate::memory::objects::libraries::{GLOBALS, KERNELS, LOADED, is_in, key, pack, unpack};
use crate::memory::objects::{captures, context_table};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{DevicePtr, Handle, OUT_OF_MEMORY, SUCCESS, Status};

/// Makes a call that loads `library` into the current context, if it is not there yet.
fn bring_in(library: Handle, call: impl FnOnce() -> Status) -> Status {
    let Ok(current) = context_table::current() else { return call() };
    let key = key(library, current.id);
    let is_loaded = is_in(library, current);
    let globals = GLOBALS.get(library as u64).filter(|_| !is_loaded).map_or(Globals::NONE, |globals| unpack(globals.load(Relaxed)));
    let status = modules::load_for_good(globals, call);
    if status == SUCCESS && !is_loaded && LOADED.get(key).is_none() {
        LOADED.insert(key, 1);
    }
    status
}

/// Before a first launch, which brings in the library, if that is a library's kernel.
///
/// # Errors
/// CUDA's out-of-memory code if the library does not fit.
pub fn before_launch(kernel: Handle) -> Result<(), Status> {
    let Some(library) = library_of(kernel) else { return Ok(()) };
    let Ok(current) = context_table::current() else { return Ok(()) };
    if is_in(library, current) {
        return Ok(());
    }
    let mut module = core::ptr::null_mut();
    // The first launch may be one that is captured, and what is brought in for it here must not end that.
    let _relaxed = captures::leave_alone();
    // SAFETY: a library that the program has; the driver writes one handle.
    match bring_in(library, || unsafe { driver::library_module(&raw mut module, library) }) {
        OUT_OF_MEMORY => Err(OUT_OF_MEMORY),
        // Whatever else is wrong with it, the launch will say.
        _ => Ok(()),
    }
}

fn library_of(kernel: Handle) -> Option<Handle> {
    KERNELS.get(kernel as u64).map(|library| library.load(Relaxed) as Handle)
}

fn note(kernel: Handle, library: Handle) {
    match KERNELS.get(kernel as u64) {
        Some(known) => known.store(library as u64, Relaxed),
        None => _ = KERNELS.insert(kernel as u64, library as u64),
    }
}

/// `cuLibraryGetKernel`
pub unsafe fn kernel(
    real: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> Status,
    kernel: *mut Handle,
    library: Handle,
    name: *const c_char,
) -> Status {
    // SAFETY: the program's own arguments; the kernel is read only after the driver wrote it.
    unsafe {
        let status = real(kernel, library, name);
        if status == SUCCESS {
            note(*kernel, library);
        }
        status
    }
}

/// `cuLibraryEnumerateKernels`
pub unsafe fn kernels(
    real: unsafe extern "C" fn(*mut Handle, u32, Handle) -> Status,
    list: *mut Handle,
    count: u32,
    library: Handle,
) -> Status {
    // SAFETY: the program's own arguments; the driver has written as many kernels as there are, which may be fewer than there is room for.
    unsafe {
        if !list.is_null() {
            core::ptr::write_bytes(list, 0, count as usize);
        }
        let status = real(list, count, library);
        if status == SUCCESS && !list.is_null() {
            core::slice::from_raw_parts(list, count as usize)
                .iter()
                .filter(|kernel| !kernel.is_null())
                .for_each(|&kernel| note(kernel, library));
        }
        status
    }
}

type Load<T> = unsafe extern "C" fn(*mut Handle, *const T, *mut i32, *mut *mut c_void, u32, *mut i32, *mut *mut c_void, u32) -> Status;

/// What nobody can read off an image is brought in at once, where it can be undone; without a context that waits for the first use.
unsafe fn load_with(library: *mut Handle, globals: Globals, call: impl FnOnce() -> Status) -> Status {
    let mut is_here = false;
    let call = || {
        let (status, mut module) = (call(), core::ptr::null_mut());
        // SAFETY: the driver has just written the handle, and writes another.
        is_here = status == SUCCESS && !globals.exact && unsafe { driver::library_module(&raw mut module, *library) } == SUCCESS;
        status
    };
    let undo = |_: &Gpu| {
        // SAFETY: the library was just loaded, and the program is about to hear that it was not.
        unsafe {
            driver::library_unload(*library);
            *library = core::ptr::null_mut();
        }
    };
    let at_once = Globals { mallocs: globals.mallocs && !globals.exact, ..Globals::NONE };
    let status = modules::load(at_once, call, Some(undo));
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

/// `cuLibraryLoadData`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn load_data(
    real: Load<c_void>,
    library: *mut Handle,
    code: *const c_void,
    options: *mut i32,
    values: *mut *mut c_void,
    count: u32,
    library_options: *mut i32,
    library_values: *mut *mut c_void,
    library_count: u32,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe {
        let call = || real(library, code, options, values, count, library_options, library_values, library_count);
        if library.is_null() { call() } else { load_with(library, reader::if_limited(|| reader::globals(code)), call) }
    }
}

/// `cuLibraryLoadFromFile`
#[expect(clippy::too_many_arguments, reason = "CUDA's signature")]
pub unsafe fn load_file(
    real: Load<c_char>,
    library: *mut Handle,
    path: *const c_char,
    options: *mut i32,
    values: *mut *mut c_void,
    count: u32,
    library_options: *mut i32,
    library_values: *mut *mut c_void,
    library_count: u32,
) -> Status {
    // SAFETY: the program's own arguments.
    unsafe {
        let call = || real(library, path, options, values, count, library_options, library_values, library_count);
        if library.is_null() { call() } else { load_with(library, reader::if_limited(|| reader::globals_in_file(path)), call) }
    }
}

/// `cuLibraryUnload`
pub unsafe fn unload(real: unsafe extern "C" fn(Handle) -> Status, library: Handle) -> Status {
    // From here on another thread may be given the same handles.
    let globals = GLOBALS.remove(library as u64);
    let loaded = LOADED.iter().map(|(key, _)| key).filter(|key| key & ((1 << 48) - 1) == library as u64);
    loaded.for_each(|key| _ = LOADED.remove(key));
    let kernels = KERNELS.iter().filter(|(_, of)| of.load(Relaxed) == library as u64).map(|(kernel, _)| kernel);
    kernels.for_each(|kernel| _ = KERNELS.remove(kernel));
    // SAFETY: the program's own argument.
    let status = unsafe { modules::unload_handle(real, library) };
    if let (Some(globals), true) = (globals, status != SUCCESS) {
        GLOBALS.insert(library as u64, globals);
    }
    status
}

/// `cuLibraryGetModule`
pub unsafe fn module_of(real: unsafe extern "C" fn(*mut Handle, Handle) -> Status, module: *mut Handle, library: Handle) -> Status {
    // SAFETY: the program's own arguments.
    bring_in(library, || unsafe { real(module, library) })
}

/// `cuKernelGetFunction`
pub unsafe fn function_of(real: unsafe extern "C" fn(*mut Handle, Handle) -> Status, function: *mut Handle, kernel: Handle) -> Status {
    // SAFETY: the program's own arguments.
    let call = || unsafe { real(function, kernel) };
    match library_of(kernel) {
        Some(library) => bring_in(library, call),
        None => modules::load_for_good(Globals::NONE, call),
    }
}

/// `cuLibraryGetGlobal` and `cuLibraryGetManaged`
pub unsafe fn global(
    real: unsafe extern "C" fn(*mut DevicePtr, *mut usize, Handle, *const c_char) -> Status,
    address: *mut DevicePtr,
    bytes: *mut usize,
    library: Handle,
    name: *const c_char,
) -> Status {
    // SAFETY: the program's own arguments.
    bring_in(library, || unsafe { real(address, bytes, library, name) })
}

/// `cuModuleGetFunction`: with lazy loading this is where its code comes in.
pub unsafe fn function(
    real: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> Status,
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Status {
    // SAFETY: the program's own arguments.
    modules::load_for_good(Globals::NONE, || unsafe { real(function, module, name) })
}

/// `cuFuncLoad`
pub unsafe fn load_function(real: unsafe extern "C" fn(Handle) -> Status, function: Handle) -> Status {
    // SAFETY: the program's own argument.
    modules::load_for_good(Globals::NONE, || unsafe { real(function) })
}

/// `cuModuleGetGlobal_v2`
pub unsafe fn module_global(
    real: unsafe extern "C" fn(*mut DevicePtr, *mut usize, Handle, *const c_char) -> Status,
    address: *mut DevicePtr,
    bytes: *mut usize,
    module: Handle,
    name: *const c_char,
) -> Status {
    // SAFETY: the program's own arguments.
    modules::load_for_good(Globals::NONE, || unsafe { real(address, bytes, module, name) })
}
