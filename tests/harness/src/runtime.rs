//! Low-level runtimes and their requirements on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Low-level OCI runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// runc.
    Runc,
    /// crun.
    Crun,
}

impl Runtime {
    /// Returns the name of the program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }

    /// Returns the path of the program if it is installed. Searches the same folders as `vgpu-runtime`.
    #[must_use]
    pub fn path(self) -> Option<PathBuf> {
        let path = std::env::var("PATH").unwrap_or_default();
        let dirs = path.split(':').chain(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"]);
        dirs.filter(|dir| dir.starts_with('/')).map(|dir| Path::new(dir).join(self.name())).find(|path| path.is_file())
    }

    /// Returns a command that runs `program` in an environment that this runtime supports. crun refuses machines with both cgroup versions
    /// (hybrid mode), so it gets a mount namespace without cgroup v2. Mounts below a shared mount reach this process's namespace.
    #[must_use]
    pub fn command(self, program: &Path) -> Command {
        if self.needs_namespace() {
            let script = r#"mount --make-rprivate /sys/fs/cgroup && umount /sys/fs/cgroup/unified && exec "$@""#;
            let mut command = Command::new("unshare");
            command.args(["-m", "--propagation", "unchanged", "sh", "-c", script, "sh"]).arg(program);
            return command;
        }
        Command::new(program)
    }

    /// Returns whether this runtime runs in a mount namespace of its own.
    pub(crate) fn needs_namespace(self) -> bool {
        self == Self::Crun && Path::new("/sys/fs/cgroup/unified/cgroup.procs").exists()
    }
}

/// Returns whether this machine can run containers: it needs root, this runtime and busybox. Prints the reason if not, so that skipped
/// tests are visible.
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
