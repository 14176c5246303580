//! Waiting on a word in the state file.

use std::sync::atomic::{AtomicU32, Ordering};

/// Sleeps until `word` differs from `seen`, another thread wakes its waiters, or the clock reaches `until` (ns).
pub fn wait_until(word: &AtomicU32, seen: u32, until: u64) {
    let time = libc::timespec { tv_sec: (until / 1_000_000_000) as i64, tv_nsec: (until % 1_000_000_000) as i64 };
    let operation = libc::FUTEX_WAIT_BITSET;
    // SAFETY: the futex word and the time live through the call; the BITSET form takes an absolute time.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, &raw const time, std::ptr::null::<u32>(), u32::MAX);
    }
}

/// Changes `word` and wakes all its waiters.
pub fn wake_all(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Release);
    // SAFETY: wakes waiters on a word in the shared mapping.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
