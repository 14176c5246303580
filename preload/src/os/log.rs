//! Lines on stderr, formatted on the stack, written by one system call each. Never stdout, never a lock.

use core::ffi::CStr;
use core::fmt;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::limits::LogLevel;

use crate::os::clock;

static LEVEL: AtomicU32 = AtomicU32::new(LogLevel::Warn as u32);

/// Sets how much is said from now on.
fn set_level(level: LogLevel) {
    LEVEL.store(level as u32, Relaxed);
}

struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            // The last byte is kept for the newline; what does not fit is cut.
            if let Some(place) = self.bytes.get_mut(self.length).filter(|_| self.length < 511) {
                *place = byte;
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// Writes one line, if the level asks for it. errno is kept: callers may be in the middle of a program's own error handling.
pub fn line(level: LogLevel, message: fmt::Arguments<'_>) {
    if level as u32 > LEVEL.load(Relaxed) {
        return;
    }
    let mut line = Line { bytes: [0; 512], length: 0 };
    _ = write!(line, "[vgpu {}] {message}", pid());
    if let Some(place) = line.bytes.get_mut(line.length) {
        *place = b'\n';
    }
    // SAFETY: the buffer is longer than what is written; errno belongs to this thread.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(2, line.bytes.as_ptr().cast(), line.length + 1);
        *libc::__errno_location() = errno;
    }
}

fn pid() -> i32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// Reads how much is to be said from the environment of this process; `otherwise` where that says nothing. The environment's owner is
/// who reads the lines.
pub fn set_level_by_environment(otherwise: LogLevel) {
    // SAFETY: a C string; getenv's answer is read at once.
    let said = |name: &CStr| unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    };
    let level = said(c"VGPU_LOG").and_then(LogLevel::named);
    let level = level.or_else(|| said(c"LIBCUDA_LOG_LEVEL").and_then(LogLevel::of_hami));
    set_level(level.or_else(|| said(c"LOGGER_LEVEL").and_then(LogLevel::of_controller)).unwrap_or(otherwise));
}

/// Lets a message through at first, then at most once a second.
#[derive(Debug, Default)]
pub struct Seldom(AtomicU64);

impl Seldom {
    const SECOND: u64 = 1_000_000_000;

    /// One that has not spoken yet.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether it may speak now.
    pub fn now(&self) -> bool {
        self.at(clock::monotonic())
    }

    fn at(&self, now: u64) -> bool {
        let last = self.0.load(Relaxed);
        (last == 0 || now.saturating_sub(last) >= Self::SECOND) && self.0.compare_exchange(last, now.max(1), Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_first_and_then_once_a_second() {
        let seldom = Seldom::new();
        let spoken: Vec<u64> = (0..40).map(|step| step * 100_000_000).filter(|now| seldom.at(5_000_000 + now)).collect();
        assert_eq!(spoken, [0, 1_000_000_000, 2_000_000_000, 3_000_000_000]);
    }
}
