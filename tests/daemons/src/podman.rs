//! Podman.

use crate::{import_tar, run, vgpu};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What an operator of a machine without systemd, and without the right to raise limits, writes.
const OPERATORS: &str = "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=1000:1000\"] # low\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n";

/// A Podman with an /etc/containers of its own. Its drop-ins have no other place, so it runs in a mount namespace.
#[derive(Debug)]
pub struct Podman(tempfile::TempDir);

impl Default for Podman {
    fn default() -> Self {
        Self::new()
    }
}

impl Podman {
    /// With Debian's configuration, the operator's, and an image `localhost/test:1`.
    pub fn new() -> Self {
        let test = Self(tempfile::tempdir().expect("it can be read and written"));
        run(Command::new("cp").args(["-a", "/etc/containers"]).arg(test.below("")));
        fs::write(test.below("containers/containers.conf"), OPERATORS).expect("it can be read and written");
        run(test.podman().arg("import").arg(import_tar(test.0.path())).arg("localhost/test:1"));
        test
    }

    fn below(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program.
    pub fn podman(&self) -> Command {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$0\" /etc/containers && exec podman \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(self.below("containers"));
        command.arg("--root").arg(self.below("root")).arg("--runroot").arg(self.below("run")).args(["--storage-driver", "vfs"]);
        command
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    /// `vgpu configure podman` for it.
    pub fn configure(&self, args: &[&str]) {
        let config = self.below("containers/containers.conf");
        assert!(vgpu(&[&["configure", "podman", "--config", config.to_str().expect("a plain path")], args].concat()));
    }

    /// What a container says that is run with `options`.
    pub fn says(&self, options: &[&str]) -> String {
        run(self.podman().args(["run", "--rm", "--network", "none"]).args(options).args(["localhost/test:1", "/bin/echo", "hello"]))
    }

    /// What is in its /etc/containers.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let list = run(Command::new("find").arg(self.below("containers")).args(["-type", "f"]));
        let mut files: Vec<_> = list.lines().map(|path| (path.into(), fs::read(path).expect("it can be read and written"))).collect();
        files.sort();
        files
    }
}
