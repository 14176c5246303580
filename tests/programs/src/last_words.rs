//! What a process was at when a signal ended it: for programs that do at random what a driver may not survive.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

static STEP: AtomicU64 = AtomicU64::new(0);
static WHAT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// The signals of a program that went wrong, which end it.
const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// From now on, one of those signals has the process say on stderr which step it was at, what it did, at which address, and who had
/// called whom, by file and offset. Then it ends by that signal, as it would have.
pub fn prepare() {
    // The first call loads what it needs, which a signal's handler must not.
    let mut frames = [std::ptr::null_mut(); 2];
    // SAFETY: room for as many frames as it is told; a handler with the arguments that SA_SIGINFO promises, and an empty mask.
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

/// Notes the step that is next.
pub fn step(number: u64) {
    STEP.store(number, Relaxed);
}

/// Notes what is next.
pub fn doing(what: &'static str) {
    LENGTH.store(0, Relaxed);
    WHAT.store(what.as_ptr().cast_mut(), Relaxed);
    LENGTH.store(what.len(), Relaxed);
}

/// Allocates nothing and takes no lock, as the signal may have come in the middle of either.
unsafe extern "C" fn on_signal(signal: i32, about: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let mut frames = [std::ptr::null_mut(); 48];
    // SAFETY: the system's own record of this signal; the noted text is a static one of at most that length.
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
        // The handler is reset, and the signal not blocked: this is the end.
        libc::raise(signal);
    }
}

unsafe fn write(text: &[u8]) {
    // SAFETY: text of that length.
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
    // SAFETY: text of their lengths.
    unsafe {
        write(before);
        write(&digits[at..]);
    }
}
