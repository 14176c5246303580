//! A robust mutex in the state file: it survives the death of its holder.

use crate::layout::SharedMutex;

// SAFETY: a process-shared pthread mutex may be used by several threads and processes.
unsafe impl Sync for SharedMutex {}

impl SharedMutex {
    /// Initializes the mutex in a new state file.
    pub fn init(&self) {
        // SAFETY: the attribute object lives on this stack; no other process has mapped the file of the mutex yet.
        unsafe {
            let mut attributes = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.0.get(), &raw const attributes);
            libc::pthread_mutexattr_destroy(&raw mut attributes);
        }
    }

    /// Locks the mutex. Runs `repair` first if the last holder died while it held the mutex.
    pub fn lock(&self, repair: impl FnOnce()) -> Guard<'_> {
        let answer = self.wait();
        if answer == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex, and EOWNERDEAD requires this call.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
            repair();
        } else {
            assert_eq!(answer, 0, "cannot lock the mutex of the simulated GPU");
        }
        Guard(self)
    }

    /// Waits in steps of 10 ms. A process that is killed just after it was woken consumes the wake-up, and the other waiters would never
    /// learn that the mutex is free (seen with 32 processes, half of them killed repeatedly).
    fn wait(&self) -> i32 {
        loop {
            let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `until` lives through both calls; `init` initialized the mutex before the file got its name.
            let answer = unsafe {
                libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
                until.tv_nsec += 10_000_000;
                if until.tv_nsec >= 1_000_000_000 {
                    (until.tv_sec, until.tv_nsec) = (until.tv_sec + 1, until.tv_nsec - 1_000_000_000);
                }
                libc::pthread_mutex_timedlock(self.0.get(), &raw const until)
            };
            if answer != libc::ETIMEDOUT {
                return answer;
            }
        }
    }
}

/// Lock guard of a [`SharedMutex`].
pub struct Guard<'a>(&'a SharedMutex);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.0.0.get()) };
    }
}
