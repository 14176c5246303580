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
        // SAFETY: the mutex was made by `init` before the file got its name.
        let answer = unsafe { libc::pthread_mutex_lock(self.0.get()) };
        if answer == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex, in the state that asks for this call.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
            repair();
        } else {
            assert_eq!(answer, 0, "the simulated GPU's mutex cannot be taken");
        }
        Guard(self)
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
