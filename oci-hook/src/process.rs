//! Processes of this host, and the identity of this process.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// A process, identified so that a later one with the same PID is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// PID.
    pub pid: u32,
    /// Start time in clock ticks since the machine's boot.
    pub start_time: u64,
}

impl Process {
    /// Returns this process. Both fields are kept by the exec of the low-level runtime.
    #[must_use]
    pub fn this() -> Self {
        static THIS: OnceLock<Process> = OnceLock::new();
        *THIS.get_or_init(|| {
            let pid = std::process::id();
            Self { pid, start_time: start_time(pid).unwrap_or(0) }
        })
    }

    /// Returns the process with this PID, if there is one.
    #[must_use]
    pub fn with_pid(pid: u32) -> Option<Self> {
        start_time(pid).map(|start_time| Self { pid, start_time })
    }

    /// Returns whether the process still runs.
    #[must_use]
    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

/// Reads field 22 of `/proc/<pid>/stat`, counted after the name, which may contain any bytes.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    std::str::from_utf8(&stat[after_name..]).ok()?.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the UID on the host that this process acts for, unless that is root. It differs from the effective UID in a user namespace.
#[must_use]
pub fn rootless_user() -> Option<u32> {
    let euid = rustix::process::geteuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    outer_user(&map, euid).filter(|&uid| uid != 0)
}

/// Returns the UID that stands for users that the user namespace does not map.
#[must_use]
pub fn overflow_user() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()
}

/// Maps a UID inside a user namespace to the one outside, by the namespace's `uid_map`.
fn outer_user(map: &str, inner: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut fields = line.split_whitespace().map(str::parse::<u32>);
        let (Some(Ok(first)), Some(Ok(outer)), Some(Ok(count))) = (fields.next(), fields.next(), fields.next()) else {
            return None;
        };
        inner.checked_sub(first).filter(|&offset| offset < count).map(|offset| outer + offset)
    })
}

/// Returns the path of a file of the parent process in `/proc`. The PID is read there, so that it is one of the PID namespace that `/proc`
/// belongs to.
fn parent_file(name: &str) -> Option<PathBuf> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
    Some(format!("/proc/{parent}/{name}").into())
}

/// Returns the arguments of the parent process, without its name.
#[must_use]
pub fn parent_arguments() -> Vec<OsString> {
    let all = parent_file("cmdline").and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
    let all = all.strip_suffix(b"\0").unwrap_or(&all);
    all.split(|&byte| byte == 0).skip(1).map(|arg| OsString::from_vec(arg.to_vec())).collect()
}

/// Opens the stderr of the parent process if this process's own is dropped. Writing never waits for its reader.
#[must_use]
pub fn parent_stderr_if_dropped() -> Option<File> {
    let own = rustix::fs::fstat(std::io::stderr()).ok()?;
    let null = rustix::fs::stat("/dev/null").ok()?;
    if own.st_rdev != null.st_rdev {
        return None;
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().append(true).custom_flags(flags.bits().cast_signed()).open(parent_file("fd/2")?).ok()
}

/// Sends `signal` to this process, to end as its child did.
pub fn raise(signal: i32) {
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}

/// Search path in addition to `PATH`, which callers such as containerd may not set. CRI-O's packages have runtimes in a folder of their
/// own.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/crio";

/// Finds the first of `programs`, which are names or paths, that is not this program itself.
#[must_use]
pub fn find(programs: &[PathBuf]) -> Option<PathBuf> {
    let this = std::fs::metadata("/proc/self/exe").map(|found| (found.dev(), found.ino())).ok();
    let is_usable = |path: &Path| match std::fs::metadata(path) {
        Ok(found) => found.is_file() && found.mode() & 0o111 != 0 && Some((found.dev(), found.ino())) != this,
        Err(_) => false,
    };
    let path = std::env::var("PATH").unwrap_or_default();
    programs.iter().find_map(|program| {
        if program.is_absolute() {
            return is_usable(program).then(|| program.clone());
        }
        candidates(&path, program).find(|path| is_usable(path))
    })
}

/// Returns the paths at which a program may be, in order, for the search path of the environment.
fn candidates(path: &str, program: &Path) -> impl Iterator<Item = PathBuf> {
    path.split(':').chain(DEFAULT_PATH.split(':')).filter(|dir| dir.starts_with('/')).map(move |dir| Path::new(dir).join(program))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn users_are_mapped_out_of_a_namespace() {
        let cases = [
            ("the initial namespace", "         0          0 4294967295\n", 0, Some(0)),
            ("root of a rootless container", "0 1000 1\n1 100000 65536\n", 0, Some(1000)),
            ("another user of that container", "0 1000 1\n1 100000 65536\n", 33, Some(100_032)),
            ("an unmapped user", "0 1000 1\n", 1, None),
        ];
        for (description, map, inner, expected) in cases {
            assert_eq!(outer_user(map, inner), expected, "{description}");
        }
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let this = Process::this();
        assert!(this.is_alive());
        assert!(!Process { start_time: this.start_time + 1, ..this }.is_alive());
    }

    #[test]
    fn a_process_with_any_name_is_alive() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(OsString::from_vec(b"\xff) 1 (\n".to_vec()));
        std::fs::copy(find(&["sleep".into()]).unwrap(), &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("600").arg0("sleep").spawn().unwrap();
        let found = Process::with_pid(child.id());
        let is_alive = found.is_some_and(Process::is_alive);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_alive, "{found:?}");
        assert!(!found.is_some_and(Process::is_alive));
    }

    #[test]
    fn programs_of_the_path_precede_others_and_cri_o_s_own_are_last() {
        let found: Vec<_> = candidates("/opt/bin:relative:", Path::new("crun")).collect();
        assert_eq!(found.first(), Some(&"/opt/bin/crun".into()));
        assert_eq!(found.last(), Some(&"/usr/libexec/crio/crun".into()));
        assert!(found.contains(&"/usr/bin/crun".into()) && found.iter().all(|path| path.is_absolute()), "{found:?}");
    }

    #[test]
    fn find_skips_this_program() {
        let named = |names: &[&str]| find(&names.iter().map(PathBuf::from).collect::<Vec<_>>());
        let this = std::env::current_exe().unwrap();
        let this = this.to_str().unwrap();
        assert_eq!(named(&["no-such-program-at-all", this, "/bin/sh"]), Some("/bin/sh".into()));
        assert!(named(&["sh"]).unwrap().ends_with("sh"));
        assert_eq!(named(&[this]), None);
        assert_eq!(named(&["/etc/passwd"]), None);
    }
}
