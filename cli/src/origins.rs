//! User and command line of processes on this host, by `/proc`.

use rustix::fs::{CWD, Mode, OFlags, openat};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use vgpu_monitor::text::printable;

/// Bytes of a file that are read at most. A command line may have megabytes.
const MAX_FILE: u64 = 4096;

/// What `/proc` says of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Name of the user, else the user's number. Empty if the process is gone.
    pub user: String,
    /// Command line. Empty if the process is gone or has none.
    pub command: String,
}

/// Users by number, and processes that were looked up since [`Origins::forget`].
#[derive(Debug)]
pub(crate) struct Origins {
    users: HashMap<u32, String>,
    known: HashMap<u32, Origin>,
    /// Looks a process up.
    pub source: fn(u32, &HashMap<u32, String>) -> Origin,
}

impl Origins {
    /// Reads the names of this host's users.
    pub fn of_host() -> Self {
        Self { users: users(&std::fs::read_to_string("/etc/passwd").unwrap_or_default()), known: HashMap::new(), source: of_proc }
    }

    /// Forgets the processes, so that they are looked up anew.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// Looks a process up.
    pub fn look_up(&mut self, pid: u32) {
        let (source, users) = (self.source, &self.users);
        self.known.entry(pid).or_insert_with(|| source(pid, users));
    }

    /// Returns the user and the command of a process; empty if it was not looked up.
    pub fn of(&self, pid: u32) -> Origin {
        self.known.get(&pid).cloned().unwrap_or_default()
    }
}

/// Looks a process up in `/proc`.
fn of_proc(pid: u32, users: &HashMap<u32, String>) -> Origin {
    let uid = read(&format!("/proc/{pid}/status")).and_then(|status| uid(&status));
    let user = uid.map_or_else(String::new, |uid| users.get(&uid).cloned().unwrap_or_else(|| uid.to_string()));
    Origin { user, command: read(&format!("/proc/{pid}/cmdline")).map_or_else(String::new, |text| command(&text)) }
}

/// Reads the first [`MAX_FILE`] bytes of a file. Bytes that are not UTF-8 are replaced.
fn read(path: &str) -> Option<String> {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(file).take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses `/etc/passwd`.
fn users(text: &str) -> HashMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((fields.nth(1)?.parse().ok()?, printable(name)))
    };
    text.lines().filter_map(user).collect()
}

/// Returns the effective user of a process, by its `status`.
fn uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns a command line with spaces between its arguments, and without hidden characters.
fn command(text: &str) -> String {
    printable(text.trim_end_matches('\0').replace(['\0', '\n', '\t'], " ").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_user_and_a_command() {
        let mut origins = Origins::of_host();
        let this = std::process::id();
        assert_eq!(origins.of(this), Origin::default(), "not looked up yet");
        for pid in [this, u32::MAX] {
            origins.look_up(pid);
        }
        let found = origins.of(this);
        assert!(!found.user.is_empty() && found.command.contains(&std::env::args().next().unwrap()), "{found:?}");
        assert_eq!(origins.of(u32::MAX), Origin::default(), "there is no such process");
    }

    #[test]
    fn files_of_proc_are_parsed() {
        let known = users("root:x:0:0:root:/root:/bin/sh\nana\x1b:x:1000:1000::/:\nbroken\nx:y:z\n");
        assert_eq!(known, HashMap::from([(0, "root".to_owned()), (1000, "ana?".to_owned())]));
        assert_eq!(uid("Name:\tUid: 5\nUid:\t1\t2\t3\t4\n"), Some(2));
        assert_eq!(command("python3\0-c\0print()\n\x1b[2J\0\0"), "python3 -c print() ?[2J");
    }
}
