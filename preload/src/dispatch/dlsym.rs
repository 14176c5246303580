//! `dlsym` and `dlvsym`.
//!
//! Both are tail jumps. For a name that is not intercepted the real function sees the program's own return address, so `RTLD_NEXT` and
//! `RTLD_DEFAULT` keep their meaning, and the detour costs a few nanoseconds.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::Ordering::Relaxed;

use crate::dispatch;
use crate::entry_points::names;
use crate::loader::dlsym::{REAL_DLSYM, REAL_DLVSYM, fail, find_real, real_dlsym};
use crate::loader::{symbols, withheld};

/// Result in two registers.
#[repr(C)]
struct Answer {
    /// Address for the program.
    address: *mut c_void,
    /// 1 if the program gets `address`, 0 if the real function decides.
    is_final: usize,
}

/// The real function decides.
const PASS: Answer = Answer { address: core::ptr::null_mut(), is_final: 0 };

/// Answers that there is no such function, also to a program that asks `dlerror`.
unsafe fn not_found(name: *const c_char) -> Answer {
    // SAFETY: the caller's promise: a C string.
    unsafe { fail(name) };
    Answer { address: core::ptr::null_mut(), is_final: 1 }
}

/// Decides about a name that begins with `cu`, `nv` or `dl`.
unsafe extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> Answer {
    // SAFETY: dlsym's own contract: `name` is a C string.
    let (entry, loader) = unsafe { (names::find(name), loader_function(name)) };
    if let Some(loader) = loader {
        // Another interposer looks up the C library's function. It gets this one, as its programs would bypass the library otherwise.
        // SAFETY: the program's own arguments.
        let native = unsafe { real_dlsym(handle, name) };
        let is_glibc = native == REAL_DLSYM.load(Relaxed) || native == REAL_DLVSYM.load(Relaxed);
        return if is_glibc { Answer { address: loader, is_final: 1 } } else { PASS };
    }
    let Some(entry) = entry else {
        // SAFETY: as above.
        return unsafe { if is_withheld(handle, name) { not_found(name) } else { PASS } };
    };
    let hook = dispatch::address(entry);
    let is_special = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
    // SAFETY: as above. With a special handle this frame would be the caller, so those are answered without the real function.
    let native = if is_special { hook } else { unsafe { real_dlsym(handle, name) } };
    if native.is_null() {
        return PASS;
    }
    if native == hook {
        // This library's own export, found in the global scope. It is right only if the driver is loaded and has the function.
        let is_there = symbols::is_loaded(entry) && symbols::real(entry).is_some();
        // SAFETY: as above.
        return if is_there { Answer { address: hook, is_final: 1 } } else { unsafe { not_found(name) } };
    }
    if symbols::real(entry).is_some() && symbols::native(entry) == Some(native) { Answer { address: hook, is_final: 1 } } else { PASS }
}

/// Returns whether a name is that of a function of the driver or of NVML that is withheld, and logs that it is.
unsafe fn is_withheld(handle: *mut c_void, name: *const c_char) -> bool {
    // SAFETY: the program's own arguments.
    unsafe {
        let text = CStr::from_ptr(name);
        if !withheld::is_withheld(text) {
            return false;
        }
        let drivers = symbols::loaded(text);
        let is_special = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
        let is_drivers = !drivers.is_null() && (is_special || real_dlsym(handle, name) == drivers);
        if is_drivers {
            withheld::warn(text);
        }
        is_drivers
    }
}

/// Returns this library's form of `dlsym` or `dlvsym`, for these names.
unsafe fn loader_function(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: all are C strings.
    unsafe {
        if libc::strcmp(name, c"dlsym".as_ptr()) == 0 {
            return Some(dlsym as *mut c_void);
        }
        (libc::strcmp(name, c"dlvsym".as_ptr()) == 0).then_some(dlvsym as *mut c_void)
    }
}

/// Makes `dlsym` and `dlvsym`. [`answer`] decides about names that begin with `cu`, `nv` or `dl`; all others jump to the real function.
/// Arguments are in rdi, rsi and (for dlvsym) rdx; the stack stays aligned over the calls.
#[cfg(target_arch = "x86_64")]
macro_rules! look_up {
    ($name:ident, $real:ident, $($argument:ident: $type:ty),+) => {
        #[doc = concat!("Replaces `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the function that it replaces.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type),+) -> *mut c_void {
            core::arch::naked_asm!(
                "test rsi, rsi",
                "jz 2f",
                "mov al, [rsi]",
                "cmp al, 'c'",
                "je 3f",
                "cmp al, 'n'",
                "je 4f",
                "cmp al, 'd'",
                "je 5f",
                "2:",
                "mov rax, [rip + {real}]",
                "test rax, rax",
                "jz 7f",
                "jmp rax",
                "3:",
                "cmp byte ptr [rsi + 1], 'u'",
                "je 6f",
                "jmp 2b",
                "4:",
                "cmp byte ptr [rsi + 1], 'v'",
                "je 6f",
                "jmp 2b",
                "5:",
                "cmp byte ptr [rsi + 1], 'l'",
                "jne 2b",
                "6:",
                "push rdi",
                "push rsi",
                "push rdx",
                "call {answer}",
                "mov rcx, rdx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rcx, rcx",
                "jz 2b",
                "ret",
                "7:",
                "push rdi",
                "push rsi",
                "push rdx",
                "call {find_real}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "mov rax, [rip + {real}]",
                "test rax, rax",
                "jz 8f",
                "jmp rax",
                "8:",
                "ret",
                real = sym $real,
                answer = sym answer,
                find_real = sym find_real,
            )
        }
    };
}

look_up!(dlsym, REAL_DLSYM, _handle: *mut c_void, _name: *const c_char);

look_up!(dlvsym, REAL_DLVSYM, _handle: *mut c_void, _name: *const c_char, _version: *const c_char);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_looked_up_as_without_the_library() {
        for name in [c"getpid", c"curl_no_such", c"nvtx_no_such", c"dlopen", c"", c"no_such"] {
            // SAFETY: plain look-ups.
            unsafe {
                let native = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
                assert_eq!(dlsym(libc::RTLD_DEFAULT, name.as_ptr()), native, "{name:?}");
                let native = libc::dlvsym(libc::RTLD_DEFAULT, name.as_ptr(), c"GLIBC_2.2.5".as_ptr());
                assert_eq!(dlvsym(libc::RTLD_DEFAULT, name.as_ptr(), c"GLIBC_2.2.5".as_ptr()), native, "{name:?}");
            }
        }
    }

    #[test]
    fn a_look_up_of_dlsym_returns_this_librarys() {
        // SAFETY: plain look-ups.
        unsafe {
            assert_eq!(dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()), dlsym as *mut c_void);
            assert_eq!(dlvsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()), dlsym as *mut c_void);
        }
    }

    #[test]
    fn without_a_driver_no_function_is_found() {
        // SAFETY: plain look-ups; the tests load no CUDA driver.
        unsafe {
            libc::dlerror();
            assert!(dlsym(libc::RTLD_DEFAULT, c"cuMemAlloc_v2".as_ptr()).is_null());
            let error = libc::dlerror();
            assert!(!error.is_null(), "a program that asks dlerror takes null for the function's address");
            assert!(CStr::from_ptr(error).to_str().unwrap().ends_with("undefined symbol: cuMemAlloc_v2"));
        }
    }
}
