//! The host's processes as `/proc` describes them.
//!
//! A process chooses its own name and the names of the cgroups below its container's, in any bytes. So files are read as bytes, and what
//! is not UTF-8 is replaced.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};

use crate::text::printable;

/// Bytes that most of the files fit in.
const FILE_ROOM: usize = 4096;
/// Bytes of a file that are read at most. A process can be in no more cgroups than the host has hierarchies, with paths of 4 KiB each.
const MAX_FILE: u64 = 1 << 20;

/// Process on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// PID in this process's PID namespace.
    pub pid: u32,
    /// PID in the process's own namespace.
    pub inner_pid: u32,
    /// Start time in clock ticks since boot. With the PID, the process's identity.
    pub start_time: u64,
    /// Whether all threads of the process have exited: it is a zombie.
    pub has_exited: bool,
    /// Program name.
    pub name: String,
    /// Cgroup paths of all hierarchies, each once.
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
        // An open directory stays that of one process: if the PID is reused, its files cannot be opened any more.
        let dir = open(CWD, &format!("/proc/{pid}"), OFlags::PATH | OFlags::DIRECTORY)?;
        let stat = Stat::read(&dir, "stat")?;
        // The kernel takes cgroups and namespaces from a thread that has exited, so a living one is asked.
        let thread = if stat.is_leaderless() { living_thread(pid, &dir) } else { None };
        let source = thread.as_deref().unwrap_or_default();
        let namespace = |kind: &str| statat(&dir, format!("{source}ns/{kind}"), AtFlags::empty()).map_or(0, |found| found.st_ino);
        let this = Self {
            pid,
            inner_pid: parse_inner_pid(&read_lossy(&dir, "status")?).unwrap_or(pid),
            start_time: stat.start_time,
            has_exited: stat.has_exited(),
            pid_namespace: namespace("pid"),
            mount_namespace: namespace("mnt"),
            // The last one: it cannot be read once the process is gone.
            cgroups: parse_cgroups(&read_lossy(&dir, &format!("{source}cgroup"))?),
            name: stat.name,
        };
        Some(this)
    }

    /// Reads whether the process still exists, and whether it has exited. Costs a fifth of [`Process::read`]. Returns false if the process is gone
    /// or another one has the PID.
    pub fn refresh(&mut self) -> bool {
        let Some(stat) = Stat::read(CWD, &format!("/proc/{}/stat", self.pid)).filter(|stat| stat.start_time == self.start_time) else {
            return false;
        };
        self.has_exited = stat.has_exited();
        self.name = stat.name;
        true
    }
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    /// Whether the first thread has exited.
    has_leader_exited: bool,
    /// Number of threads, with the first one.
    threads: u64,
    start_time: u64,
}

impl Stat {
    fn read(dir: impl AsFd, path: &str) -> Option<Self> {
        Self::parse(&read_lossy(dir, path)?)
    }

    /// Parses the file. Fields count from the end of the name, which may contain anything.
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().take(20).collect();
        Some(Self {
            name: printable(head.split_once('(').map_or("", |(_, name)| name)),
            has_leader_exited: matches!(*fields.first()?, "Z" | "X" | "x"),
            threads: fields.get(17)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// Returns whether the first thread has exited, as after `pthread_exit`, while others run.
    fn is_leaderless(&self) -> bool {
        self.has_leader_exited && self.threads > 1
    }

    fn has_exited(&self) -> bool {
        self.has_leader_exited && !self.is_leaderless()
    }
}

fn open(dir: impl AsFd, path: &str, flags: OFlags) -> Option<OwnedFd> {
    openat(dir, path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Reads a text file. What is not UTF-8 is replaced.
fn read_lossy(dir: impl AsFd, path: &str) -> Option<String> {
    // The files have no size, so a read without room for them takes many calls, and there is no use in asking for it.
    let mut bytes = Vec::with_capacity(FILE_ROOM);
    fs::File::from(open(dir, path, OFlags::RDONLY)?).take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Returns the directory of a thread that has not exited, in the process's directory and with a slash at its end.
fn living_thread(pid: u32, dir: &OwnedFd) -> Option<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut dirs = threads.filter_map(|entry| Some(format!("task/{}/", entry.file_name().to_str()?)));
    dirs.find(|thread| Stat::read(dir, &format!("{thread}stat")).is_some_and(|stat| !stat.has_leader_exited))
}

fn parse_inner_pid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()?.parse().ok()
}

fn parse_cgroups(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        // Most hierarchies have the same path.
        if !found.iter().any(|known| known == path) {
            found.push(path.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests;
