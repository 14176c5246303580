//! Reports what a process was doing when a signal ended it: for programs whose random calls may crash a driver.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

static STEP: AtomicU64 = AtomicU64::new(0);
static WHAT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Signals that a crash raises.
const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// Installs handlers for these signals. They print the signal, the address, the current step and action, and a backtrace by file and
/// offset to stderr. Then the process ends by that signal.
pub fn prepare() {
    // The first call of `backtrace` loads a library, which a signal handler must not do.
    let mut frames = [std::ptr::null_mut(); 2];
    // SAFETY: `frames` has room for 2 entries; the handler has the signature that SA_SIGINFO requires, and the mask is empty.
    unsafe {
        libc::backtrace(frames.as_mut_ptr(), 2);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_NODEFER;
        for signal in SIGNALS {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Records the number of the step that follows.
pub fn step(number: u64) {
    STEP.store(number, Relaxed);
}

/// Records the action that follows.
pub fn doing(what: &'static str) {
    LENGTH.store(0, Relaxed);
    WHAT.store(what.as_ptr().cast_mut(), Relaxed);
    LENGTH.store(what.len(), Relaxed);
}

// Allocates nothing and takes no lock: the signal may have interrupted either.
unsafe extern "C" fn on_signal(signal: i32, about: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let mut frames = [std::ptr::null_mut(); 48];
    // SAFETY: `about` is the kernel's record of this signal; the recorded text is static and has at least the recorded length.
    unsafe {
        say(b"signal ", signal as u64, 10);
        say(b" at 0x", (*about).si_addr() as u64, 16);
        say(b" in step ", STEP.load(Relaxed), 10);
        say(b" of process ", u64::from(std::process::id()), 10);
        write(b": ");
        let (what, length) = (WHAT.load(Relaxed), LENGTH.load(Relaxed));
        if !what.is_null() {
            write(std::slice::from_raw_parts(what, length));
        }
        write(b"\n");
        let count = libc::backtrace(frames.as_mut_ptr(), frames.len() as i32);
        libc::backtrace_symbols_fd(frames.as_ptr(), count, 2);
        // The handler is reset and the signal is not blocked, so this ends the process.
        libc::raise(signal);
    }
}

unsafe fn write(text: &[u8]) {
    // SAFETY: pointer and length are those of a slice.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

unsafe fn say(before: &[u8], number: u64, base: u64) {
    let (mut digits, mut at, mut rest) = ([0; 20], 20, number);
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(rest % base) as usize];
        rest /= base;
        if rest == 0 {
            break;
        }
    }
    // SAFETY: `write` is safe for every slice.
    unsafe {
        write(before);
        write(&digits[at..]);
    }
}
