//! Identity of processes across PID namespaces.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Returns the inode of the PID namespace of this process; 0 if /proc does not tell.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// Identity of a process across PID namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// PID in its own PID namespace.
    pub pid: u32,
    /// Inode of its PID namespace; 0 if unknown.
    pub pid_namespace: u64,
    /// Start time in clock ticks since boot; 0 if unknown.
    pub start_ticks: u64,
}

/// Returns the identity of this process.
pub fn current_process() -> ProcessIdentity {
    let pid = std::process::id();
    ProcessIdentity { pid, pid_namespace: pid_namespace(), start_ticks: start_ticks(pid) }
}

/// Returns the start time of a process in clock ticks since boot; 0 if /proc does not tell.
pub fn start_ticks(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(0, |text| start_in_stat(&text))
}

fn start_in_stat(text: &str) -> u64 {
    let after_name = text.rfind(')').map_or("", |at| &text[at + 1..]);
    after_name.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Searches /proc for the process with PID `inner_pid` in its own namespace and this start time. Returns its PID in this namespace.
pub fn find_process(inner_pid: u32, start_ticks: u64) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|&pid| {
        let innermost = fs::read_to_string(format!("/proc/{pid}/status")).ok().and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("NSpid:"))?;
            line.split_ascii_whitespace().next_back()?.parse::<u32>().ok()
        });
        innermost == Some(inner_pid) && self::start_ticks(pid) == start_ticks
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_parsed_after_a_name_with_parentheses() {
        let text = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_in_stat(text), 4242);
        assert_eq!(start_in_stat("garbage"), 0);
    }

    #[test]
    fn this_process_is_found_by_its_own_pid_and_start() {
        let pid = std::process::id();
        assert_eq!(find_process(pid, start_ticks(pid)), Some(pid));
        assert_eq!(find_process(pid, start_ticks(pid) + 1), None);
    }
}
