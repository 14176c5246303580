//! Processes of this host: who is alive, who we are.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// A process, named so that a later one with the same number is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the machine did.
    pub start_time: u64,
}

impl Process {
    /// This process. It keeps both figures when it turns into the low-level runtime by exec.
    #[must_use]
    pub fn this() -> Self {
        static THIS: OnceLock<Process> = OnceLock::new();
        *THIS.get_or_init(|| {
            let pid = std::process::id();
            Self { pid, start_time: start_time(pid).unwrap_or(0) }
        })
    }

    /// The process with this number, if there is one.
    #[must_use]
    pub fn with_pid(pid: u32) -> Option<Self> {
        start_time(pid).map(|start_time| Self { pid, start_time })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

/// Field 22 of `/proc/<pid>/stat`, counted behind the name, which may contain anything.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The user of the system that this process acts for, if it is not the system's root: another user, or a user namespace of one.
#[must_use]
pub fn rootless_user() -> Option<u32> {
    let euid = rustix::process::geteuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    outer_user(&map, euid).filter(|&uid| uid != 0)
}

/// The number by which users are shown that a user namespace has none for.
#[must_use]
pub fn overflow_user() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()
}

/// The number outside a user namespace of the user who is `inside` it, by the namespace's map.
fn outer_user(map: &str, inside: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut figures = line.split_whitespace().map(str::parse::<u32>);
        let (Some(Ok(first)), Some(Ok(outer)), Some(Ok(count))) = (figures.next(), figures.next(), figures.next()) else {
            return None;
        };
        inside.checked_sub(first).filter(|&offset| offset < count).map(|offset| outer + offset)
    })
}

/// The arguments of the process that started this one, without its name. The number in `/proc` counts, which is the one of the
/// namespace that `/proc` belongs to.
#[must_use]
pub fn parents_arguments() -> Vec<OsString> {
    let read = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
        std::fs::read(format!("/proc/{parent}/cmdline")).ok()
    };
    let all = read().unwrap_or_default();
    let all = all.strip_suffix(b"\0").unwrap_or(&all);
    all.split(|&byte| byte == 0).skip(1).map(|arg| OsString::from_vec(arg.to_vec())).collect()
}

/// Ends this process by a signal, as a process ended that it stands for.
pub fn end_by(signal: i32) {
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}

/// Where programs are looked for beside `PATH`, which callers such as containerd may not have set.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Finds the first of `programs`, which are names or paths, that is not this very program.
#[must_use]
pub fn find(programs: &[PathBuf]) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let myself = std::fs::metadata("/proc/self/exe").map(|me| (me.dev(), me.ino())).ok();
    let usable = |path: &Path| match std::fs::metadata(path) {
        Ok(found) => found.is_file() && found.mode() & 0o111 != 0 && Some((found.dev(), found.ino())) != myself,
        Err(_) => false,
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = || path.split(':').chain(USUAL_PATH.split(':')).filter(|dir| dir.starts_with('/'));
    programs.iter().find_map(|program| {
        if program.is_absolute() {
            return usable(program).then(|| program.clone());
        }
        dirs().map(|dir| Path::new(dir).join(program)).find(|path| usable(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_namespace() {
        let cases = [
            ("the system's own", "         0          0 4294967295\n", 0, Some(0)),
            ("a user's container root", "0 1000 1\n1 100000 65536\n", 0, Some(1000)),
            ("a user of that container", "0 1000 1\n1 100000 65536\n", 33, Some(100_032)),
            ("nobody", "0 1000 1\n", 1, None),
        ];
        for (description, map, inside, expected) in cases {
            assert_eq!(outer_user(map, inside), expected, "{description}");
        }
    }

    #[test]
    fn a_number_is_not_enough() {
        let this = Process::this();
        assert!(this.is_alive());
        assert!(!Process { start_time: this.start_time + 1, ..this }.is_alive());
    }

    #[test]
    fn finds_programs_but_never_itself() {
        let named = |names: &[&str]| find(&names.iter().map(PathBuf::from).collect::<Vec<_>>());
        let this = std::env::current_exe().unwrap();
        let this = this.to_str().unwrap();
        assert_eq!(named(&["no-such-program-at-all", this, "/bin/sh"]), Some("/bin/sh".into()));
        assert!(named(&["sh"]).unwrap().ends_with("sh"));
        assert_eq!(named(&[this]), None);
        assert_eq!(named(&["/etc/passwd"]), None);
    }
}
