//! Processes of this host: who is alive, who we are.

use std::path::{Path, PathBuf};

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
        let pid = std::process::id();
        Self { pid, start_time: start_time(pid).unwrap_or(0) }
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

/// Whether this process is without the rights of the system's root: another user, or root of a user namespace.
#[must_use]
pub fn is_rootless() -> bool {
    let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    !rustix::process::geteuid().is_root() || !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(whole)
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
