//! What `/proc` tells about processes on the host.

use std::fs;

/// Memory and descriptors of a process. Memory is in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Resident memory.
    pub rss: u64,
    /// Resident memory, where what several processes share counts for each in parts.
    pub pss: u64,
    /// Memory that no other process has, with what is swapped out.
    pub private: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// Returns the PIDs of all processes.
#[must_use]
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the PIDs of a process's children.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Returns the PIDs of a process and all its descendants, parents first.
#[must_use]
pub fn tree(pid: u32) -> Vec<u32> {
    std::iter::once(pid).chain(children(pid).into_iter().flat_map(tree)).collect()
}

/// Returns the name of a process. Empty if there is none.
#[must_use]
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Returns a process's PID namespace. `None` if it has exited.
#[must_use]
pub fn namespace(pid: u32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?.to_string_lossy().into_owned())
}

/// Returns the fields of a process's `stat` after its name: the state, the parent and so on.
fn stat(pid: u32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().map(str::to_owned).collect()
}

/// Returns whether a process has exited and was not waited for.
#[must_use]
pub fn is_zombie(pid: u32) -> bool {
    stat(pid).first().is_some_and(|state| state == "Z")
}

/// Returns whether a process runs: it exists and has not exited.
#[must_use]
pub fn is_running(pid: u32) -> bool {
    stat(pid).first().is_some_and(|state| state != "Z" && state != "X")
}

/// Returns the CPU time of a process and its children in clock ticks.
#[must_use]
pub fn cpu_ticks(pid: u32) -> u64 {
    let own = |pid| stat(pid).iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    tree(pid).into_iter().map(own).sum()
}

/// Returns the memory and the descriptors of a process. `None` if it has exited.
#[must_use]
pub fn usage(pid: u32) -> Option<Usage> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let sum = |names: &[&str]| {
        let lines = rollup.lines().filter(|line| names.iter().any(|name| line.split(':').next() == Some(name)));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>() << 10
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    Some(Usage { rss: sum(&["Rss"]), pss: sum(&["Pss"]), private: sum(&["Private_Clean", "Private_Dirty", "Swap"]), descriptors })
}
