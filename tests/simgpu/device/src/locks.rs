//! File locks that say who is alive, and under which PID.
//!
//! Each slot has two bytes far behind the file's end. The first is locked through the open file description: the mapping keeps that
//! alive, so the lock outlives a process that closes all its descriptors, and goes with the process. The second is a POSIX lock:
//! fragile, but the kernel translates its owner's PID for whoever asks.

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

/// Takes the slot's life lock. False when a living process has it.
pub fn try_lock(fd: RawFd, index: usize) -> bool {
    let lock = flock_at(libc::F_WRLCK, ALIVE_OFFSET, index);
    // SAFETY: fcntl reads the lock, which lives through the call.
    unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) == 0 }
}

/// Marks the slot with this process' PID for readers in other PID namespaces.
pub fn mark_pid(fd: RawFd, index: usize) {
    let lock = flock_at(libc::F_WRLCK, PID_OFFSET, index);
    // SAFETY: fcntl reads the lock, which lives through the call.
    unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const lock) };
}

/// Whether another open file holds the slot's life lock. The holder itself sees `false` through its own descriptor.
pub fn is_locked(fd: RawFd, index: usize) -> bool {
    let mut lock = flock_at(libc::F_WRLCK, ALIVE_OFFSET, index);
    // SAFETY: fcntl writes the lock, which lives through the call.
    let answer = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) };
    answer == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}

/// What the kernel says of the owner of a slot's PID mark.
#[derive(Debug, PartialEq, Eq)]
pub enum PidMark {
    /// Its PID in the reader's namespace.
    Visible(u32),
    /// It is in a namespace that the reader cannot see.
    OtherNamespace,
    /// There is no mark: this process is the owner, or the owner closed all its descriptors.
    None,
}

/// Reads a slot's PID mark.
pub fn pid_mark(fd: RawFd, index: usize) -> PidMark {
    let mut lock = flock_at(libc::F_WRLCK, PID_OFFSET, index);
    // SAFETY: fcntl writes the lock, which lives through the call.
    let answer = unsafe { libc::fcntl(fd, libc::F_GETLK, &raw mut lock) };
    if answer != 0 || i32::from(lock.l_type) == libc::F_UNLCK {
        return PidMark::None;
    }
    u32::try_from(lock.l_pid).ok().filter(|&pid| pid > 0).map_or(PidMark::OtherNamespace, PidMark::Visible)
}
