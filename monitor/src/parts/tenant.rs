//! A container's user: its root directory, and the identity of its first process.

use std::fs::File;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::capabilities::Identity;
use crate::processes::Process;

/// Root and identity of a container's first process, both as the host sees them.
#[derive(Debug)]
pub struct Tenant {
    /// Root directory. Below it are the container's own mounts, so what is read-only for the container is read-only here.
    pub root: File,
    /// User, group and supplementary groups.
    pub identity: Identity,
}

impl Tenant {
    /// Returns the tenant whose container has this first process, by its PID and start time.
    ///
    /// # Errors
    /// The process has exited, or is out of reach.
    pub fn find(pid: u32, start_time: u64) -> io::Result<Self> {
        let gone = || io::Error::other("the container is gone");
        let handle = pidfd_open(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?, PidfdFlags::empty())?;
        // The handle stands for the process that is meant, and that process still runs at the end: its entry in /proc was its own.
        if Process::read(pid).is_none_or(|found| found.start_time != start_time) {
            return Err(gone());
        }
        let identity = parse_status(&std::fs::read_to_string(format!("/proc/{pid}/status"))?).ok_or_else(gone)?;
        let root = open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut exited = [PollFd::new(&handle, PollFlags::IN)];
        if poll(&mut exited, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? != 0 {
            return Err(gone());
        }
        Ok(Self { root: File::from(root), identity })
    }
}

/// Returns the real user and group and the supplementary groups in `/proc/PID/status`. A program with the set-user-ID bit is the user who
/// started it.
fn parse_status(status: &str) -> Option<Identity> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    let first = |name: &str| field(name)?.next()?.parse().ok();
    let groups = field("Groups:")?.map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(Identity { uid: first("Uid:")?, gid: first("Gid:")?, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_the_real_ones() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t100\t0\t0\t0\nFDSize:\t64\nGroups:\t4 20 \nNSpid:\t7\n";
        assert_eq!(parse_status(status), Some(Identity { uid: 1000, gid: 100, groups: vec![4, 20] }));
        let status = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t \n";
        assert_eq!(parse_status(status), Some(Identity { uid: 0, gid: 0, groups: Vec::new() }));
        assert_eq!(parse_status("Uid:\t0\t0\t0\t0\nGid:\tx\nGroups:\t\n"), None);
        assert_eq!(parse_status(""), None);
    }
}
