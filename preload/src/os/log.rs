//! Log lines on stderr, formatted on the stack and written by one system call each. Never stdout, never a lock.

use core::ffi::CStr;
use core::fmt;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::limits::LogLevel;

use crate::os::{clock, errno};

/// Level up to which lines are written.
static LEVEL: AtomicU32 = AtomicU32::new(LogLevel::Warn as u32);

/// Sets the level.
fn set_level(level: LogLevel) {
    LEVEL.store(level as u32, Relaxed);
}

/// Log line under construction.
struct Line {
    /// The text.
    bytes: [u8; 512],
    /// Length in bytes.
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            // The last byte is for the newline; a longer text is cut.
            if let Some(place) = self.bytes.get_mut(self.length).filter(|_| self.length < 511) {
                *place = byte;
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// Writes a line if the level admits it. Preserves errno, as the program may be handling an error of its own.
pub fn line(level: LogLevel, message: fmt::Arguments<'_>) {
    if level as u32 > LEVEL.load(Relaxed) {
        return;
    }
    let mut line = Line { bytes: [0; 512], length: 0 };
    _ = write!(line, "[vgpu {}] {message}", pid());
    if let Some(place) = line.bytes.get_mut(line.length) {
        *place = b'\n';
    }
    // SAFETY: the buffer is longer than the line.
    errno::preserved(|| unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.length + 1) });
}

/// Returns this process's id.
fn pid() -> i32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// Sets the level from this process's environment, or to `default`: `VGPU_LOG`, else HAMi's `LIBCUDA_LOG_LEVEL`, else the GPU manager's
/// `LOGGER_LEVEL`. The lines go to the owner of the environment, so it may choose.
pub fn set_level_by_environment(default: LogLevel) {
    // SAFETY: a C string; the result of getenv is read at once.
    let variable = |name: &CStr| unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    };
    let level = variable(c"VGPU_LOG").and_then(LogLevel::named);
    let level = level.or_else(|| variable(c"LIBCUDA_LOG_LEVEL").and_then(LogLevel::of_hami));
    set_level(level.or_else(|| variable(c"LOGGER_LEVEL").and_then(LogLevel::of_controller)).unwrap_or(default));
}

/// Rate limit of a message: the first one passes, then at most one a second.
#[derive(Debug, Default)]
pub struct Throttle(AtomicU64);

impl Throttle {
    /// A second in nanoseconds.
    const SECOND: u64 = 1_000_000_000;

    /// Returns a rate limit that has passed no message.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns whether a message may pass now.
    pub fn allow(&self) -> bool {
        self.allow_at(clock::monotonic())
    }

    /// Returns whether a message may pass at a time of `CLOCK_MONOTONIC`, in nanoseconds.
    fn allow_at(&self, now: u64) -> bool {
        let last = self.0.load(Relaxed);
        (last == 0 || now.saturating_sub(last) >= Self::SECOND) && self.0.compare_exchange(last, now.max(1), Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_a_second_passes() {
        let throttle = Throttle::new();
        let passed: Vec<u64> = (0..40).map(|step| step * 100_000_000).filter(|now| throttle.allow_at(5_000_000 + now)).collect();
        assert_eq!(passed, [0, 1_000_000_000, 2_000_000_000, 3_000_000_000]);
    }
}
