//! A mutex in the state file that survives the death of its holder.

use crate::layout::SharedMutex;

// SAFETY: a process-shared pthread mutex is made to be used by several threads and processes.
unsafe impl Sync for SharedMutex {}

impl SharedMutex {
    /// Makes the mutex in a new state file.
    pub fn init(&self) {
        // SAFETY: the attribute object lives on this stack; the mutex is in a file that nobody else has mapped yet.
        unsafe {
            let mut attributes = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.0.get(), &raw const attributes);
            libc::pthread_mutexattr_destroy(&raw mut attributes);
        }
    }

    /// Takes the mutex. `repair` runs first when the last holder died with it.
    pub fn lock(&self, repair: impl FnOnce()) -> Guard<'_> {
        let answer = self.wait();
        if answer == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex, in the state that asks for this call.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
            repair();
        } else {
            assert_eq!(answer, 0, "the simulated GPU's mutex cannot be taken");
        }
        Guard(self)
    }

    /// Waits in short steps: a process that is killed just when it was woken takes the wake-up along (seen with 32 processes, half of them
    /// killed again and again), and nobody else would hear that the mutex is free.
    fn wait(&self) -> i32 {
        loop {
            let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the clock is written to a variable of this function, which lives through both calls; the mutex was made by `init`
            // before the file got its name.
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

/// Holds a [`SharedMutex`].
pub struct Guard<'a>(&'a SharedMutex);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.0.0.get()) };
    }
}
