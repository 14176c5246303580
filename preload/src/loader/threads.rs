//! Starts the library's own threads. Only containers with a compute limit or evictable memory have any.

use core::ffi::{c_int, c_void};

use super::elf;

/// Main function of a thread.
pub type Main = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a thread that runs `main` with `argument`. Returns false if the process cannot have one.
///
/// # Safety
/// `argument` is what `main` expects, and is never freed.
pub unsafe fn start(main: Main, argument: *mut c_void) -> bool {
    /// Signature of `pthread_create`, without attributes.
    type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const c_void, Main, *mut c_void) -> c_int;
    /// Signature of `pthread_setname_np`.
    type SetName = unsafe extern "C" fn(libc::pthread_t, *const core::ffi::c_char) -> c_int;
    /// Signature of `pthread_detach`.
    type Detach = unsafe extern "C" fn(libc::pthread_t) -> c_int;
    // SAFETY: null, or the C library's functions, with their documented signatures. The name is a C string.
    unsafe {
        let create = core::mem::transmute::<*mut c_void, Option<Create>>(elf::in_libc(c"pthread_create"));
        let detach = core::mem::transmute::<*mut c_void, Option<Detach>>(elf::in_libc(c"pthread_detach"));
        let set_name = core::mem::transmute::<*mut c_void, Option<SetName>>(elf::in_libc(c"pthread_setname_np"));
        let (Some(create), Some(detach)) = (create, detach) else { return false };
        let mut thread = 0;
        // Signals are for the program's own threads: the new one inherits a mask that blocks all.
        let before = set_signal_mask(u64::MAX);
        let result = create(&raw mut thread, core::ptr::null(), main, argument);
        set_signal_mask(before);
        if result != 0 {
            return false;
        }
        if let Some(set_name) = set_name {
            set_name(thread, c"vgpu".as_ptr());
        }
        detach(thread) == 0
    }
}

/// Sets this thread's signal mask, as the kernel represents it, and returns the one before. Where glibc has a separate libpthread, its
/// function for that is there, which this library does not link.
fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads and writes eight bytes each.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, size_of::<u64>()) };
    before
}
