//! Which process is which, across PID namespaces.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The inode of this process' PID namespace; 0 when /proc does not say.
fn own() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// This process: its PID, namespace and start.
pub fn this_process() -> (u32, u64, u64) {
    let pid = std::process::id();
    (pid, own(), started(pid))
}

/// When a process started, in clock ticks since boot; 0 when /proc does not say.
pub fn started(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(0, |text| start_in_stat(&text))
}

fn start_in_stat(text: &str) -> u64 {
    let after_name = text.rfind(')').map_or("", |at| &text[at + 1..]);
    after_name.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// The PID here of the process that calls itself `inner` in its own namespace and started at `started`, by looking through /proc.
pub fn find(inner: u32, started_at: u64) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|&pid| {
        let innermost = fs::read_to_string(format!("/proc/{pid}/status")).ok().and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("NSpid:"))?;
            line.split_ascii_whitespace().next_back()?.parse::<u32>().ok()
        });
        innermost == Some(inner) && started(pid) == started_at
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse_the_start_time() {
        let text = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_in_stat(text), 4242);
        assert_eq!(start_in_stat("garbage"), 0);
    }

    #[test]
    fn this_process_is_found_by_its_own_pid_and_start() {
        let pid = std::process::id();
        assert_eq!(find(pid, started(pid)), Some(pid));
        assert_eq!(find(pid, started(pid) + 1), None);
    }
}
