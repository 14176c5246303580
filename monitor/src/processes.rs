//! The host's processes as `/proc` describes them.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Process on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// PID in this process's PID namespace.
    pub pid: u32,
    /// PID in the process's own namespace.
    pub inner_pid: u32,
    /// Start time in clock ticks since boot. With the PID, the process's identity.
    pub start_time: u64,
    /// Whether the process is a zombie.
    pub has_exited: bool,
    /// Program name.
    pub name: String,
    /// Cgroup paths, one for each hierarchy.
    pub cgroups: Vec<String>,
    /// Inode of the PID namespace. 0 if unknown.
    pub pid_namespace: u64,
    /// Inode of the mount namespace. 0 if unknown.
    pub mount_namespace: u64,
}

impl Process {
    /// Reads a process's entry in `/proc`. `None` if there is no such process.
    #[must_use]
    pub fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (start_time, has_exited) = parse_stat(&stat)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let namespace = |kind: &str| fs::metadata(format!("/proc/{pid}/ns/{kind}")).map_or(0, |found| found.ino());
        let this = Self {
            pid,
            inner_pid: parse_inner_pid(&status).unwrap_or(pid),
            start_time,
            has_exited,
            name: parse_name(&stat),
            cgroups: parse_cgroups(&cgroup),
            pid_namespace: namespace("pid"),
            mount_namespace: namespace("mnt"),
        };
        // The PID may have been reused between the reads.
        let again = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        (parse_stat(&again)?.0 == start_time).then_some(this)
    }
}

/// Returns the start time and whether the process is a zombie. Fields count from the end of the name, which may contain anything.
fn parse_stat(stat: &str) -> Option<(u64, bool)> {
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    Some((fields.nth(18)?.parse().ok()?, matches!(state, "Z" | "X" | "x")))
}

/// Returns the program name with control characters replaced, as the process chooses the name itself.
fn parse_name(stat: &str) -> String {
    let name = stat.split_once('(').and_then(|(_, rest)| Some(rest.rsplit_once(')')?.0)).unwrap_or_default();
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn parse_inner_pid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()?.parse().ok()
}

fn parse_cgroups(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_read() {
        let this = Process::read(std::process::id()).unwrap();
        assert!(this.start_time > 0 && !this.has_exited && this.pid_namespace != 0);
        assert!(Process::read(u32::MAX).is_none());
    }

    #[test]
    fn names_with_parentheses_and_newlines_are_parsed() {
        let stat = "7 (a) Z\n) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!((parse_stat(stat), parse_name(stat)), (Some((4242, false)), "a) Z?".to_owned()));
        assert_eq!(parse_stat("8 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99 20"), Some((99, true)));
        assert_eq!(parse_stat("garbage"), None);
        assert_eq!(parse_inner_pid("Name:\tx\nNSpid:\t4000\t7\n"), Some(7));
        assert_eq!(parse_cgroups("4:memory:/a/b\n0::/c:d\n"), ["/a/b", "/c:d"]);
    }
}
