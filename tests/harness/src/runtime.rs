//! Low-level runtimes, and what they need to run on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A low-level runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// runc.
    Runc,
    /// crun.
    Crun,
}

impl Runtime {
    /// Its program's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }

    /// Its program's path, if it is installed: where `vgpu-runtime` finds it, too.
    #[must_use]
    pub fn path(self) -> Option<PathBuf> {
        let path = std::env::var("PATH").unwrap_or_default();
        let dirs = path.split(':').chain(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"]);
        dirs.filter(|dir| dir.starts_with('/')).map(|dir| Path::new(dir).join(self.name())).find(|path| path.is_file())
    }

    /// A command that runs `program` where this runtime can work: crun refuses a machine with cgroups of both versions, so it gets
    /// a mount namespace without the second.
    #[must_use]
    pub fn command(self, program: &Path) -> Command {
        let hybrid = Path::new("/sys/fs/cgroup/unified/cgroup.procs").exists();
        if self == Self::Crun && hybrid {
            let mut command = Command::new("unshare");
            command
                .args(["-m", "--propagation", "private", "sh", "-c", r#"umount /sys/fs/cgroup/unified && exec "$@""#, "sh"])
                .arg(program);
            return command;
        }
        Command::new(program)
    }
}

/// Whether containers can be run here: as root, with this runtime and busybox. Says why not, so that a skipped test is seen.
#[must_use]
pub fn can_run(runtime: Runtime) -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let missing = match (root, runtime.path(), Path::new("/bin/busybox").exists()) {
        (false, ..) => "root",
        (_, None, _) => runtime.name(),
        (.., false) => "busybox-static",
        _ => return true,
    };
    eprintln!("SKIPPED: this test runs containers with {} and needs {missing}", runtime.name());
    false
}
