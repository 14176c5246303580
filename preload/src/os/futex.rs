//! Waits for a change of a word in memory, which other processes may share.

use core::sync::atomic::AtomicU32;

use super::{clock, errno};

/// Sleeps while `word` is `value`, at most `timeout_ns` nanoseconds. A signal ends the sleep early. Leaves errno as it is.
pub fn wait(word: &AtomicU32, value: u32, timeout_ns: u64) {
    let time = clock::timespec(timeout_ns);
    // SAFETY: the word stays mapped during the call.
    errno::preserved(|| unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time) });
}

/// Wakes all threads that wait for a change of `word`. Leaves errno as it is.
pub fn wake(word: &AtomicU32) {
    // SAFETY: as above; there need not be a waiting thread.
    errno::preserved(|| unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) });
}
