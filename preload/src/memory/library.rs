//! Libraries, which are loaded into a context when something of theirs is first used there, and functions, which may be loaded late.
//!
//! What an image declares in plain sight is taken before the first use, which is refused if that does not fit. What else a first use
//! takes cannot be undone, so it only counts: the next request is refused.

use core::ffi::{c_char, c_void};
use core::sync::atomic::Ordering::Relaxed;

use super::known::{self, Current};
use super::table::Table;
use super::{image, module};
use crate::cuda::{DevicePtr, Handle, OUT_OF_MEMORY, SUCCESS, Status};
use crate::driver;

/// Bytes of global arrays by library, as far as they are in plain sight.
static GLOBALS: Table = Table::new();
/// Libraries that are in a context: both in the key.
static LOADED: Table = Table::new();

/// A library in a context. Handles are addresses of 47 bits.
fn key(library: Handle, context: u8) -> u64 {
    library as u64 | (u64::from(context) + 1) << 48
}

/// Makes a call that loads `library` into the current context, if it is not there yet.
fn bring_in(library: Handle, call: impl FnOnce() -> Status) -> Status {
    let globals = GLOBALS.get(library as u64).map_or(0, |bytes| bytes.load(Relaxed));
    let Ok(Current { id, .. }) = known::current() else { return call() };
    let key = key(library, id);
    if globals == 0 || LOADED.get(key).is_some() {
        return module::load(0, call, |_| {});
    }
    let status = module::load(globals, call, |_| {});
    if status == SUCCESS {
        LOADED.insert(key, 1);
    }
    status
}

/// Before a launch of what is no function of the current context: a kernel of a library, then, which the launch would bring in.
///
/// # Errors
/// CUDA's out-of-memory code if the library does not fit.
pub fn before_launch(kernel: Handle) -> Result<(), Status> {
    let (mut library, mut function) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: what the program is about to launch; the driver writes one handle, or fails.
    if unsafe { driver::kernel_library(&raw mut library, kernel) } != SUCCESS {
        return Ok(());
    }
    // SAFETY: a kernel.
    match bring_in(library, || unsafe { driver::kernel_function(&raw mut function, kernel) }) {
        OUT_OF_MEMORY => Err(OUT_OF_MEMORY),
        // Whatever else is wrong with it, the launch will say.
        _ => Ok(()),
    }
}

type Load<T> = unsafe extern "C" fn(*mut Handle, *const T, *mut i32, *mut *mut c_void, u32, *mut i32, *mut *mut c_void, u32) -> Status;

unsafe fn load_with(library: *mut Handle, globals: u64, call: impl FnOnce() -> Status) -> Status {
    let status = module::load(0, call, |_| {
        // SAFETY: the library was just loaded, and the program is about to hear that it was not.
        unsafe {
            driver::library_unload(*library);
            *library = core::ptr::null_mut();
        }
    });
    if status == SUCCESS && globals != 0 {
        // SAFETY: the driver has just written the handle.
        GLOBALS.insert(unsafe { *library } as u64, globals);
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
        if library.is_null() { call() } else { load_with(library, image::globals(code), call) }
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
        if library.is_null() { call() } else { load_with(library, 0, call) }
    }
}

/// `cuLibraryUnload`
pub unsafe fn unload(real: unsafe extern "C" fn(Handle) -> Status, library: Handle) -> Status {
    // From here on another thread may be given the same handle.
    let globals = GLOBALS.remove(library as u64);
    if globals.is_some() {
        let of_this = LOADED.iter().map(|(key, _)| key).filter(|key| key & ((1 << 48) - 1) == library as u64);
        of_this.for_each(|key| _ = LOADED.remove(key));
    }
    // SAFETY: the program's own argument.
    let status = unsafe { module::unload_handle(real, library) };
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
    let mut library = core::ptr::null_mut();
    // SAFETY: the program's own arguments; the driver writes one handle, or fails for what is no kernel.
    unsafe {
        _ = driver::kernel_library(&raw mut library, kernel);
        bring_in(library, || real(function, kernel))
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
    module::load(0, || unsafe { real(function, module, name) }, |_| {})
}

/// `cuFuncLoad`
pub unsafe fn load_function(real: unsafe extern "C" fn(Handle) -> Status, function: Handle) -> Status {
    // SAFETY: the program's own argument.
    module::load(0, || unsafe { real(function) }, |_| {})
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
    module::load(0, || unsafe { real(address, bytes, module, name) }, |_| {})
}
