//! Clocks and sleep.

use super::errno;

/// Converts a duration in nanoseconds.
pub fn timespec(nanoseconds: u64) -> libc::timespec {
    libc::timespec { tv_sec: (nanoseconds / 1_000_000_000) as _, tv_nsec: (nanoseconds % 1_000_000_000) as _ }
}

/// Sleeps; a signal ends the sleep early. Leaves errno as it is.
pub fn nap(nanoseconds: i64) {
    let pause = timespec(nanoseconds.unsigned_abs());
    // SAFETY: the structure is valid; the remaining time is not requested.
    errno::preserved(|| unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) });
}

/// Returns nanoseconds of `CLOCK_MONOTONIC`.
pub fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Returns seconds of `CLOCK_MONOTONIC_COARSE`, which is quick to read.
#[inline]
pub fn coarse_second() -> u64 {
    clock(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000_000
}

/// Returns nanoseconds of `CLOCK_REALTIME`.
pub fn realtime() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// Returns nanoseconds of a clock.
fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
