//! Podman.

use crate::{import_tar, run, vgpu};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What an operator of a machine without systemd, and without the right to raise limits, writes.
const OPERATOR_CONFIG: &str = "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=1000:1000\"] # low\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n";

/// A Podman with an /etc/containers of its own. Its drop-ins have no other place, so it runs in a mount namespace.
#[derive(Debug)]
pub struct Podman {
    dir: tempfile::TempDir,
    setup: &'static str,
}

/// Who runs it, given a script's first argument, the folder with its configuration: root, in front of either low-level runtime, or an
/// ordinary user, who has user numbers to give away and a folder for what runs.
const ROOT_SETUP: &str = "";
const CRUN_SETUP: &str = "umount /sys/fs/cgroup/unified 2>/dev/null;";
const ROOTLESS_SETUP: &str = "mount --bind \"$0/subid\" /etc/subuid && mount --bind \"$0/subid\" /etc/subgid && mkdir -p /run/user && mount -t tmpfs tmpfs /run/user && \
    mkdir -m 700 /run/user/1 && chown 1:1 /run/user/1 && cd \"$0\" && export HOME=\"$0/home\" XDG_RUNTIME_DIR=/run/user/1 && \
    set -- setpriv --reuid=1 --regid=1 --clear-groups \"$@\";";

impl Default for Podman {
    fn default() -> Self {
        Self::new()
    }
}

impl Podman {
    /// With Debian's configuration, the operator's, and an image `localhost/test:1`.
    pub fn new() -> Self {
        Self::of(ROOT_SETUP)
    }

    /// The same in front of crun, where that can work.
    pub fn with_crun() -> Self {
        Self::of(CRUN_SETUP)
    }

    /// The same run by an ordinary user, the one whose number is 1.
    pub fn rootless() -> Self {
        Self::of(ROOTLESS_SETUP)
    }

    fn of(setup: &'static str) -> Self {
        let test = Self { dir: tempfile::tempdir().expect("it can be read and written"), setup };
        run(Command::new("cp").args(["-a", "/etc/containers"]).arg(test.path("")));
        fs::write(test.path("subid"), "daemon:100000:65536\n").expect("it can be read and written");
        if setup == ROOTLESS_SETUP {
            fs::create_dir(test.path("home")).expect("it can be read and written");
            run(Command::new("chown").args(["-R", "1:1"]).arg(test.path("")));
        }
        fs::write(test.path("containers/containers.conf"), OPERATOR_CONFIG).expect("it can be read and written");
        run(test.podman().arg("import").arg(import_tar(test.dir.path())).arg("localhost/test:1"));
        test
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program.
    pub fn podman(&self) -> Command {
        let mut command = Command::new("unshare");
        let script = format!("mount --bind \"$0/containers\" /etc/containers && {} exec \"$@\"", self.setup);
        command.args(["--mount", "sh", "-c", &script]).arg(self.dir.path()).arg("podman");
        command.arg("--root").arg(self.path("root")).arg("--runroot").arg(self.path("run")).args(["--storage-driver", "vfs"]);
        command
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `vgpu configure podman` for it.
    pub fn configure(&self, args: &[&str]) {
        let config = self.path("containers/containers.conf");
        assert!(vgpu(&[&["configure", "podman", "--config", config.to_str().expect("a plain path")], args].concat()));
    }

    /// What a container says that is run with `options`.
    pub fn run_hello(&self, options: &[&str]) -> String {
        run(self.podman().args(["run", "--rm", "--network", "none"]).args(options).args(["localhost/test:1", "/bin/echo", "hello"]))
    }

    /// What is in its /etc/containers.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let list = run(Command::new("find").arg(self.path("containers")).args(["-type", "f"]));
        let mut files: Vec<_> = list.lines().map(|path| (path.into(), fs::read(path).expect("it can be read and written"))).collect();
        files.sort();
        files
    }
}
