//! `dlsym` and `dlvsym`.
//!
//! Both are tail jumps: for any name that is not ours the real function sees the program's own return address, so that
//! `RTLD_NEXT` and `RTLD_DEFAULT` mean what they meant, and the detour costs a few nanoseconds.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::Ordering::Relaxed;

use crate::dispatch;
use crate::entry_points::names;
use crate::loader::dlsym::{REAL_DLSYM, REAL_DLVSYM, find_real, real_dlsym};
use crate::loader::{symbols, unknown_launch};

/// An answer in two registers: if `ours` is not zero, `address` is what the program gets.
#[repr(C)]
struct Answer {
    address: *mut c_void,
    ours: usize,
}

const NOT_OURS: Answer = Answer { address: core::ptr::null_mut(), ours: 0 };

/// Decides about a name that starts like one of ours.
unsafe extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> Answer {
    // SAFETY: dlsym's own contract: `name` is a C string.
    let (entry, loader) = unsafe { (names::find(name), loader_function(name)) };
    if let Some(loader) = loader {
        // Another interposer asks for the loader's own look-up: it gets ours, or it would carry programs past us.
        // SAFETY: the program's own arguments.
        let native = unsafe { real_dlsym(handle, name) };
        let is_glibc = native == REAL_DLSYM.load(Relaxed) || native == REAL_DLVSYM.load(Relaxed);
        return if is_glibc { Answer { address: loader, ours: 1 } } else { NOT_OURS };
    }
    let Some(entry) = entry else {
        // SAFETY: as above.
        return if unsafe { is_unknown_launch(handle, name) } { Answer { address: core::ptr::null_mut(), ours: 1 } } else { NOT_OURS };
    };
    let hook = dispatch::address(entry);
    let special = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
    // SAFETY: as above; for the special handles our own frame would be the caller, so they are answered without asking.
    let native = if special { hook } else { unsafe { real_dlsym(handle, name) } };
    if native.is_null() {
        return NOT_OURS;
    }
    if native == hook {
        // Our own export was found, in the global scope: that is only right if there is a driver with that function behind it.
        let address = if symbols::is_loaded(entry) && symbols::real(entry).is_some() { hook } else { core::ptr::null_mut() };
        return Answer { address, ours: 1 };
    }
    if symbols::real(entry).is_some() && symbols::native(entry) == Some(native) { Answer { address: hook, ours: 1 } } else { NOT_OURS }
}

/// Whether this is a function of the driver's that launches something and that nobody would measure.
unsafe fn is_unknown_launch(handle: *mut c_void, name: *const c_char) -> bool {
    // SAFETY: the program's own arguments.
    unsafe {
        if !unknown_launch::is_launch(name) {
            return false;
        }
        let drivers = symbols::loaded(CStr::from_ptr(name));
        let special = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
        let is_drivers = !drivers.is_null() && (special || real_dlsym(handle, name) == drivers);
        if is_drivers {
            unknown_launch::say(name);
        }
        is_drivers
    }
}

unsafe fn loader_function(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: C strings all.
    unsafe {
        if libc::strcmp(name, c"dlsym".as_ptr()) == 0 {
            return Some(dlsym as *mut c_void);
        }
        (libc::strcmp(name, c"dlvsym".as_ptr()) == 0).then_some(dlvsym as *mut c_void)
    }
}

/// The body of both: names that start with `cu`, `nv` or `dl` are decided by [`answer`], all else jumps on.
/// Arguments are in rdi, rsi and (for dlvsym) rdx; the stack is kept aligned over the calls.
#[cfg(target_arch = "x86_64")]
macro_rules! look_up {
    ($name:ident, $real:ident, $($argument:ident: $type:ty),+) => {
        #[doc = concat!("Stands in for `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the function it stands in for.
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
    use core::ffi::c_void;

    #[test]
    fn other_names_are_answered_as_ever() {
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
    fn the_loaders_own_look_up_leads_back_here() {
        // SAFETY: plain look-ups.
        unsafe {
            assert_eq!(dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()), dlsym as *mut c_void);
            assert_eq!(dlvsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()), dlsym as *mut c_void);
        }
    }

    #[test]
    fn without_a_driver_nothing_is_offered() {
        // SAFETY: plain look-up; no CUDA driver is loaded into the tests.
        assert!(unsafe { dlsym(libc::RTLD_DEFAULT, c"cuMemAlloc_v2".as_ptr()) }.is_null());
    }
}
