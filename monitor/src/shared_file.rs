//! Opens files that a container shares: its region and its limits page.
//!
//! Without a user namespace the container's root owns them, like the host's, and so may take leases on them. An open that breaks a lease waits
//! until its holder gives it up, or for `/proc/sys/fs/lease-break-time` (default: 45 seconds). The host never waits for a tenant.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use vgpu_region::map::WITHOUT_WAITING;

/// Opens a file for reading. The error is [`ErrorKind::WouldBlock`] if a process holds a lease on it.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(WITHOUT_WAITING).open(path)
}

/// Opens a file for writing. The error is [`ErrorKind::WouldBlock`] if a process holds a lease on it.
pub fn open_for_writing(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(WITHOUT_WAITING).open(path)
}

/// Returns whether an open failed because of a lease.
pub fn is_leased(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

/// Describes who holds a lease on a file: `process N`, if the kernel lists it.
pub fn lease_holder(path: &Path) -> String {
    let find = || {
        let found = std::fs::metadata(path).ok()?;
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        holder_in(&std::fs::read_to_string("/proc/locks").ok()?, device, found.ino())
    };
    find().map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"))
}

/// Finds the process with a lease on a file in the text of `/proc/locks`, which has lines like `1: LEASE  ACTIVE    READ  77 00:1f:2 0 EOF`.
fn holder_in(locks: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, _, _, pid, of) = (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        // 0 is a process of another PID namespace.
        if kind == "LEASE" && of == file { pid.parse().ok().filter(|&pid| pid > 0) } else { None }
    })
}

/// Takes a lease on an open file, for tests.
#[cfg(test)]
pub fn take_lease(file: &File, kind: i32) {
    use std::os::fd::AsRawFd;
    // SAFETY: the calls take no pointers. Breaking a lease sends SIGIO, which would end this process.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        assert_ne!(libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind), -1, "{}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:1f:2 0 EOF\n\
                     2: LEASE  ACTIVE    READ  6 00:1f:3 0 EOF\n\
                     3: LEASE  BREAKING  READ  77 00:1f:2 0 EOF\n\
                     4: LEASE  ACTIVE    WRITE 0 fe:00:9 0 EOF\n";
        assert_eq!(holder_in(locks, (0, 0x1f), 2), Some(77));
        assert_eq!(holder_in(locks, (0, 0x1f), 3), Some(6));
        assert_eq!(holder_in(locks, (0xfe, 0), 9), None);
        assert_eq!(holder_in("", (0, 0x1f), 2), None);
    }
}
