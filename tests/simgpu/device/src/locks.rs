//! File locks that tell whether the process of a slot is alive, and its PID.
//!
//! Each slot has two lock bytes far past the end of the file. The first is an open-file-description lock: the mapping keeps the
//! description alive, so the lock survives when the process closes all its descriptors, and is released when the process dies. The
//! second is a POSIX lock: it is lost when the process closes any descriptor of the file, but the kernel translates the PID of its
//! owner into the reader's namespace.

use std::os::fd::RawFd;

const ALIVE_OFFSET: i64 = 1 << 40;
const PID_OFFSET: i64 = 1 << 41;

fn flock_at(kind: i32, start: i64, index: usize) -> libc::flock {
    // SAFETY: all-zero is a valid flock.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start + index as i64;
    lock.l_len = 1;
    lock
}

/// Takes the liveness lock of the slot. Returns false if a living process holds it.
pub fn try_lock(fd: RawFd, index: usize) -> bool {
    let lock = flock_at(libc::F_WRLCK, ALIVE_OFFSET, index);
    // SAFETY: fcntl reads the lock, which lives through the call.
    unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) == 0 }
}

/// Marks the slot with the PID of this process for readers in other PID namespaces.
pub fn mark_pid(fd: RawFd, index: usize) {
    let lock = flock_at(libc::F_WRLCK, PID_OFFSET, index);
    // SAFETY: fcntl reads the lock, which lives through the call.
    unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const lock) };
}

/// Returns whether another open file holds the liveness lock of the slot. The holder itself gets `false`.
pub fn is_locked(fd: RawFd, index: usize) -> bool {
    let mut lock = flock_at(libc::F_WRLCK, ALIVE_OFFSET, index);
    // SAFETY: fcntl writes the lock, which lives through the call.
    let answer = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) };
    answer == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}

/// Owner of the PID mark of a slot.
#[derive(Debug, PartialEq, Eq)]
pub enum PidMark {
    /// PID of the owner in the reader's namespace.
    Visible(u32),
    /// The owner is in a namespace that the reader cannot see.
    OtherNamespace,
    /// No mark: this process is the owner, or the owner closed a descriptor of the file.
    None,
}

/// Reads the PID mark of a slot.
pub fn pid_mark(fd: RawFd, index: usize) -> PidMark {
    let mut lock = flock_at(libc::F_WRLCK, PID_OFFSET, index);
    // SAFETY: fcntl writes the lock, which lives through the call.
    let answer = unsafe { libc::fcntl(fd, libc::F_GETLK, &raw mut lock) };
    if answer != 0 || i32::from(lock.l_type) == libc::F_UNLCK {
        return PidMark::None;
    }
    u32::try_from(lock.l_pid).ok().filter(|&pid| pid > 0).map_or(PidMark::OtherNamespace, PidMark::Visible)
}
