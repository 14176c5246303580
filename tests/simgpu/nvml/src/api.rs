//! The export macro, return codes, argument helpers and the state of the library.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use simgpu_device::{Device, default_path};

/// NVML return codes that this library uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ReturnCode {
    Success = 0,
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    FunctionNotFound = 13,
    VersionMismatch = 25,
}

/// Result of the body of an exported function.
pub type NvmlResult<T = ()> = Result<T, ReturnCode>;

static DEVICE: OnceLock<Device> = OnceLock::new();
static USERS: Mutex<u32> = Mutex::new(0);

fn users() -> MutexGuard<'static, u32> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a user of the library and opens the machine on first use.
pub fn start() -> NvmlResult {
    let mut users = users();
    if DEVICE.get().is_none() {
        let device = Device::open(&default_path()).map_err(|_| ReturnCode::DriverNotLoaded)?;
        let _ = DEVICE.set(device);
    }
    *users += 1;
    Ok(())
}

/// Removes a user of the library.
pub fn stop() -> NvmlResult {
    let mut users = users();
    *users = users.checked_sub(1).ok_or(ReturnCode::Uninitialized)?;
    Ok(())
}

/// Returns the machine while the library has users.
pub fn machine() -> NvmlResult<&'static Device> {
    if *users() == 0 { Err(ReturnCode::Uninitialized) } else { DEVICE.get().ok_or(ReturnCode::Uninitialized) }
}

/// Runs the body of an exported function and counts the call.
pub fn enter(body: impl FnOnce() -> NvmlResult) -> ReturnCode {
    let answer = body().err().unwrap_or(ReturnCode::Success);
    if let Some(device) = DEVICE.get() {
        device.count_nvml_call();
    }
    answer
}

/// Device handle as programs hold it: the GPU's index + 1.
pub type Handle = usize;

/// Returns the index of the GPU with this handle.
pub fn gpu(handle: Handle) -> NvmlResult<usize> {
    let device = machine()?;
    handle.checked_sub(1).filter(|&gpu| gpu < device.gpus()).ok_or(ReturnCode::InvalidArgument)
}

/// Writes a value through an output pointer that must not be null.
pub fn put<T>(pointer: *mut T, value: T) -> NvmlResult {
    if pointer.is_null() {
        return Err(ReturnCode::InvalidArgument);
    }
    // SAFETY: not null, and by NVML's contract the caller passes a pointer to space for a T.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Reads an argument through a pointer that must not be null.
pub fn get<T: Copy>(pointer: *const T) -> NvmlResult<T> {
    if pointer.is_null() {
        return Err(ReturnCode::InvalidArgument);
    }
    // SAFETY: not null, and by NVML's contract the caller passes a pointer to a T.
    Ok(unsafe { pointer.read() })
}

/// Writes a string with its terminator.
pub fn put_text(out: *mut std::ffi::c_char, room: u32, text: &str) -> NvmlResult {
    if out.is_null() {
        return Err(ReturnCode::InvalidArgument);
    }
    if (room as usize) < text.len() + 1 {
        return Err(ReturnCode::InsufficientSize);
    }
    // SAFETY: by NVML's contract `out` has `room` bytes, which is enough.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Fills the caller's array. `count` holds its capacity and receives the number of items; a capacity below that is an error.
pub fn put_list<T>(count: *mut u32, list: *mut T, items: Vec<T>) -> NvmlResult {
    let room = get(count)?;
    let number = u32::try_from(items.len()).unwrap_or(u32::MAX);
    put(count, number)?;
    if room < number {
        return Err(ReturnCode::InsufficientSize);
    }
    if number > 0 && list.is_null() {
        return Err(ReturnCode::InvalidArgument);
    }
    for (index, item) in items.into_iter().enumerate() {
        // SAFETY: by NVML's contract `list` has `room` elements, and there are no more items than that.
        unsafe { list.add(index).write(item) };
    }
    Ok(())
}

/// Exports functions: `fn name(arguments) { body }` with a body that returns [`NvmlResult`]. Several names may share a body:
/// `fn name | other (…)`.
macro_rules! api {
    ($(fn $($name:ident)|+ ($($arguments:tt)*) $body:block)*) => { $( api!(@names [$($name)+] ($($arguments)*) $body); )* };
    (@names [$($name:ident)+] $arguments:tt $body:block) => { $( api!(@one $name $arguments $body); )+ };
    (@one $name:ident ($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::api::ReturnCode {
            $crate::api::enter(|| -> $crate::api::NvmlResult { $body })
        }
    };
}
