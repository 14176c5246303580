//! The calling thread's errno, which the program may be about to read.

/// Runs `work`, and leaves errno as it was.
pub fn preserved<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the word belongs to this thread, and stays where it is.
    unsafe {
        let word = libc::__errno_location();
        let before = *word;
        let result = work();
        *word = before;
        result
    }
}
