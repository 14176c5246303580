//! The host's processes as `/proc` describes them.
//!
//! A process chooses its own name and the names of the cgroups below its container's, in any bytes. So files are read as bytes, and what
//! is not UTF-8 is replaced.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::text::printable;

/// Bytes that most of the files fit in.
const FILE_ROOM: usize = 4096;

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
        let dir = format!("/proc/{pid}");
        let stat = Stat::read(&dir)?;
        // The kernel takes cgroups and namespaces from a thread that has exited, so a living one is asked.
        let thread = if stat.is_leaderless() { living_thread(&dir) } else { None };
        let source = thread.as_ref().unwrap_or(&dir);
        let namespace = |kind: &str| fs::metadata(format!("{source}/ns/{kind}")).map_or(0, |found| found.ino());
        let this = Self {
            pid,
            inner_pid: parse_inner_pid(&read_lossy(&format!("{dir}/status"))?).unwrap_or(pid),
            start_time: stat.start_time,
            has_exited: stat.has_exited(),
            cgroups: parse_cgroups(&read_lossy(&format!("{source}/cgroup")).unwrap_or_default()),
            pid_namespace: namespace("pid"),
            mount_namespace: namespace("mnt"),
            name: stat.name,
        };
        // The PID may have been reused between the reads.
        (Stat::read(&dir)?.start_time == this.start_time).then_some(this)
    }

    /// Reads whether the process still exists, and whether it has exited. Costs a fifth of [`Process::read`]. Returns false if the process is gone
    /// or another one has the PID.
    pub fn refresh(&mut self) -> bool {
        let Some(stat) = Stat::read(&format!("/proc/{}", self.pid)).filter(|stat| stat.start_time == self.start_time) else { return false };
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
    fn read(dir: &str) -> Option<Self> {
        Self::parse(&read_lossy(&format!("{dir}/stat"))?)
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

/// Reads a text file. What is not UTF-8 is replaced.
fn read_lossy(path: &str) -> Option<String> {
    // The files have no size, so a read without room for them takes many calls.
    let mut bytes = Vec::with_capacity(FILE_ROOM);
    fs::File::open(path).ok()?.read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Returns the directory in `/proc` of a thread that has not exited.
fn living_thread(process_dir: &str) -> Option<String> {
    let threads = fs::read_dir(format!("{process_dir}/task")).ok()?.flatten();
    let mut dirs = threads.filter_map(|entry| Some(format!("{process_dir}/task/{}", entry.file_name().to_str()?)));
    dirs.find(|dir| Stat::read(dir).is_some_and(|stat| !stat.has_leader_exited))
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
