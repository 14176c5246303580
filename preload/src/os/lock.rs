//! Lock between the threads of a process, for the few operations that must not overlap: near the limit, and while a context is made.
//! No wait is endless: a thread that holds the lock for too long, or that a fork left behind, loses it.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::os::clock;
use crate::os::clock::nap;

/// Lock that holds the id of the thread that has it; 0 is free.
#[derive(Debug)]
pub struct Exclusive(AtomicU32);

/// Guard of an [`Exclusive`]; dropping it frees the lock. Empty if the same thread holds the lock already.
#[must_use]
#[derive(Debug)]
pub struct Held<'a>(Option<&'a Exclusive>);

/// Returns the calling thread's id.
fn this_thread() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Returns whether a thread of this process exists. If the kernel does not tell (seccomp), it counts as existing.
fn exists(thread: u32) -> bool {
    // SAFETY: signal 0 only checks.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 || *libc::__errno_location() != libc::ESRCH }
}

impl Exclusive {
    /// Returns a free lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns whether a thread has the lock.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Takes the lock. After `patience` nanoseconds it is taken from the thread that has it.
    pub fn take(&self, patience: u64) -> Held<'_> {
        let (own, begin) = (this_thread(), clock::monotonic());
        loop {
            let holder = match self.0.compare_exchange(0, own, AcqRel, Acquire) {
                Ok(_) => return Held(Some(self)),
                // This thread has it already.
                Err(holder) if holder == own => return Held(None),
                Err(holder) => holder,
            };
            let waited = clock::monotonic().saturating_sub(begin);
            if (waited > patience || !exists(holder)) && self.0.compare_exchange(holder, own, AcqRel, Relaxed).is_ok() {
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
        if let Some(lock) = self.0 {
            // Fails if another thread has taken it meanwhile.
            _ = lock.0.compare_exchange(this_thread(), 0, AcqRel, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_holds_the_lock_at_a_time() {
        static LOCK: Exclusive = Exclusive::new();
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _held = LOCK.take(60_000_000_000);
                        assert_eq!(INSIDE.fetch_add(1, AcqRel), 0);
                        assert!(LOCK.take(60_000_000_000).0.is_none());
                        INSIDE.fetch_sub(1, AcqRel);
                    }
                });
            }
        });
        assert!(!LOCK.is_taken());
    }

    #[test]
    fn a_dead_or_slow_holder_loses_the_lock() {
        let gone = std::thread::spawn(this_thread).join().unwrap();
        let lock = Exclusive(AtomicU32::new(gone));
        assert!(lock.take(60_000_000_000).0.is_some());
        let other = std::process::id();
        if other != this_thread() {
            lock.0.store(other, Relaxed);
            assert!(lock.take(1_000_000).0.is_some());
        }
        assert!(!lock.is_taken());
    }
}
