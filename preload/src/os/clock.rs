//! The system's clocks, and sleeping.

/// Sleeps, unless a signal comes.
pub fn nap(nanoseconds: i64) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: the structure is valid; the rest of an interrupted sleep is not needed.
    unsafe { libc::nanosleep(&raw const pause, core::ptr::null_mut()) };
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Which second it is, by a clock that is quick to read.
#[inline]
pub fn coarse_second() -> u64 {
    clock(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000_000
}

/// Nanoseconds of `CLOCK_REALTIME`.
pub fn realtime() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure it is given.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
