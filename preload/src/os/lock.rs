//! One thread of the process at a time, for the few things that two must not do at once: near the limit, and while a context is made.
//! Nobody waits for ever: not for a thread that takes longer than it ever should, nor for one that was left behind by a fork.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::os::clock;
use crate::os::clock::nap;

/// What one thread holds at a time.
#[derive(Debug)]
pub struct Exclusive(AtomicU32);

/// It is this thread's, until this is dropped.
#[must_use]
#[derive(Debug)]
pub struct Held<'a>(Option<&'a Exclusive>);

fn this_thread() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether a thread is one of this process's. One that may not be asked after (seccomp) counts as here.
fn is_here(thread: u32) -> bool {
    // SAFETY: signal 0 is none; the call only looks.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 || *libc::__errno_location() != libc::ESRCH }
}

impl Exclusive {
    /// Nobody's.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether it is somebody's.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Waits for it, `patience` nanoseconds at most; then it is this thread's all the same.
    pub fn take(&self, patience: u64) -> Held<'_> {
        let (own, begin) = (this_thread(), clock::monotonic());
        loop {
            let holder = match self.0.compare_exchange(0, own, AcqRel, Acquire) {
                Ok(_) => return Held(Some(self)),
                // From within itself.
                Err(holder) if holder == own => return Held(None),
                Err(holder) => holder,
            };
            let waited = clock::monotonic().saturating_sub(begin);
            if (waited > patience || !is_here(holder)) && self.0.compare_exchange(holder, own, AcqRel, Relaxed).is_ok() {
                return Held(Some(self));
            }
            if waited < 200_000 {
                // SAFETY: the call takes nothing.
                unsafe { libc::sched_yield() };
            } else {
                nap(200_000);
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(one) = self.0 {
            // Somebody else's, if he lost patience.
            _ = one.0.compare_exchange(this_thread(), 0, AcqRel, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::AcqRel;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn one_at_a_time() {
        static ONE: Exclusive = Exclusive::new();
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _held = ONE.take(60_000_000_000);
                        assert_eq!(INSIDE.fetch_add(1, AcqRel), 0);
                        assert!(ONE.take(60_000_000_000).0.is_none());
                        INSIDE.fetch_sub(1, AcqRel);
                    }
                });
            }
        });
        assert!(!ONE.is_taken());
    }

    #[test]
    fn who_is_gone_or_too_slow_is_not_waited_for() {
        let gone = std::thread::spawn(this_thread).join().unwrap();
        let one = Exclusive(AtomicU32::new(gone));
        assert!(one.take(60_000_000_000).0.is_some());
        let other = std::process::id();
        if other != this_thread() {
            one.0.store(other, Relaxed);
            assert!(one.take(1_000_000).0.is_some());
        }
        assert!(!one.is_taken());
    }
}
