//! Processes of this host, as `/proc` tells of them.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its PID here.
    pub pid: u32,
    /// Its PID in its own namespace, as it knows itself.
    pub inner: u32,
    /// When it started, in clock ticks since the machine did: with the PID, its identity.
    pub started: u64,
    /// Whether it has ended but for being waited for.
    pub ended: bool,
    /// The name of its program.
    pub name: String,
    /// Its cgroups, one for each hierarchy.
    pub cgroups: Vec<String>,
    /// Its PID namespace; 0 if that cannot be told.
    pub namespace: u64,
    /// Its mount namespace; 0 if that cannot be told.
    pub mounts: u64,
}

impl Process {
    /// Reads what is known of a process. `None` if there is none (any more).
    #[must_use]
    pub fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (started, ended) = stat_figures(&stat)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let namespace = |of: &str| fs::metadata(format!("/proc/{pid}/ns/{of}")).map_or(0, |found| found.ino());
        let this = Self {
            pid,
            inner: inner_pid(&status).unwrap_or(pid),
            started,
            ended,
            name: name(&stat),
            cgroups: cgroups(&cgroup),
            namespace: namespace("pid"),
            mounts: namespace("mnt"),
        };
        // What was read belongs together only if it is still the same process.
        let again = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        (stat_figures(&again)?.0 == started).then_some(this)
    }
}

/// Start time and whether it is a zombie, counted behind the name, which may contain anything.
fn stat_figures(stat: &str) -> Option<(u64, bool)> {
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    Some((fields.nth(18)?.parse().ok()?, matches!(state, "Z" | "X" | "x")))
}

/// The name, without anything that a terminal or a log would trip over: a process chooses it itself.
fn name(stat: &str) -> String {
    let name = stat.split_once('(').and_then(|(_, rest)| Some(rest.rsplit_once(')')?.0)).unwrap_or_default();
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn inner_pid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()?.parse().ok()
}

fn cgroups(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let this = Process::read(std::process::id()).unwrap();
        assert!(this.started > 0 && !this.ended && this.namespace != 0);
        assert!(Process::read(u32::MAX).is_none());
    }

    #[test]
    fn a_name_with_anything_in_it_does_not_confuse() {
        let stat = "7 (a) Z\n) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!((stat_figures(stat), name(stat)), (Some((4242, false)), "a) Z?".to_owned()));
        assert_eq!(stat_figures("8 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99 20"), Some((99, true)));
        assert_eq!(stat_figures("garbage"), None);
        assert_eq!(inner_pid("Name:\tx\nNSpid:\t4000\t7\n"), Some(7));
        assert_eq!(cgroups("4:memory:/a/b\n0::/c:d\n"), ["/a/b", "/c:d"]);
    }
}
