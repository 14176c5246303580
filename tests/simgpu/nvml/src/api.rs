//! How functions are exported, what they answer, and the library's state.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use simgpu_device::{Device, default_path};

/// NVML's return codes, as far as this library uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
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

/// What a function's body returns.
pub type Answer<T = ()> = Result<T, Code>;

static DEVICE: OnceLock<Device> = OnceLock::new();
static USERS: Mutex<u32> = Mutex::new(0);

fn users() -> MutexGuard<'static, u32> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One more user of the library.
pub fn start() -> Answer {
    let mut users = users();
    if DEVICE.get().is_none() {
        let device = Device::open(&default_path()).map_err(|_| Code::DriverNotLoaded)?;
        let _ = DEVICE.set(device);
    }
    *users += 1;
    Ok(())
}

/// One user less.
pub fn stop() -> Answer {
    let mut users = users();
    *users = users.checked_sub(1).ok_or(Code::Uninitialized)?;
    Ok(())
}

/// The machine, while the library has users.
pub fn machine() -> Answer<&'static Device> {
    if *users() == 0 { Err(Code::Uninitialized) } else { DEVICE.get().ok_or(Code::Uninitialized) }
}

/// Runs a function's body, and counts the call.
pub fn enter(body: impl FnOnce() -> Answer) -> Code {
    let answer = body().err().unwrap_or(Code::Success);
    if let Some(device) = DEVICE.get() {
        device.count_nvml_call();
    }
    answer
}

/// A device handle, as programs hold it: the GPU's index + 1.
pub type Handle = usize;

/// The GPU behind a handle.
pub fn gpu(handle: Handle) -> Answer<usize> {
    let device = machine()?;
    handle.checked_sub(1).filter(|&gpu| gpu < device.gpus()).ok_or(Code::InvalidArgument)
}

/// Writes an answer through a pointer that must not be null.
pub fn put<T>(pointer: *mut T, value: T) -> Answer {
    if pointer.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: not null, and the C caller promises it points to room for a T.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Reads an argument behind a pointer that must not be null.
pub fn get<T: Copy>(pointer: *const T) -> Answer<T> {
    if pointer.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: not null, and the C caller promises it points to a T.
    Ok(unsafe { pointer.read() })
}

/// Writes a text with its terminator.
pub fn put_text(out: *mut std::ffi::c_char, room: u32, text: &str) -> Answer {
    if out.is_null() {
        return Err(Code::InvalidArgument);
    }
    if (room as usize) < text.len() + 1 {
        return Err(Code::InsufficientSize);
    }
    // SAFETY: the C caller promises `room` bytes at `out`, which is enough.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Fills the caller's array, by NVML's rule: `count` says its room and gets the number there is; too small is an error.
pub fn put_list<T>(count: *mut u32, list: *mut T, items: Vec<T>) -> Answer {
    let room = get(count)?;
    let number = u32::try_from(items.len()).unwrap_or(u32::MAX);
    put(count, number)?;
    if room < number {
        return Err(Code::InsufficientSize);
    }
    if number > 0 && list.is_null() {
        return Err(Code::InvalidArgument);
    }
    for (index, item) in items.into_iter().enumerate() {
        // SAFETY: the C caller promises `room` elements, and there are no more items than that.
        unsafe { list.add(index).write(item) };
    }
    Ok(())
}

/// Exports functions: `fn name(arguments) { body }` with a body that returns [`Answer`]. Several names may share a body:
/// `fn name | other (…)`.
macro_rules! api {
    ($(fn $($name:ident)|+ ($($arguments:tt)*) $body:block)*) => { $( api!(@names [$($name)+] ($($arguments)*) $body); )* };
    (@names [$($name:ident)+] $arguments:tt $body:block) => { $( api!(@one $name $arguments $body); )+ };
    (@one $name:ident ($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::api::Code {
            $crate::api::enter(|| -> $crate::api::Answer { $body })
        }
    };
}
