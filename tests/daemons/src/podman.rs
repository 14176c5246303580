//! Podman with its own configuration.

use crate::command::{run, vgpu};
use crate::image::import_tar;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Operator's configuration for a machine without systemd and without the right to raise limits.
const OPERATOR_CONFIG: &str = r#"[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1000:1000"] # low
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"#;

/// Podman with a private /etc/containers. The path of its drop-ins is fixed, so it runs in a mount namespace.
#[derive(Debug)]
pub struct Podman {
    dir: tempfile::TempDir,
    setup: &'static str,
}

/// Setup scripts that precede podman; `$0` is the folder with its configuration. Variants: root with runc, root with crun, and a rootless
/// user with subordinate user ids and a runtime folder.
const ROOT_SETUP: &str = "";
const CRUN_SETUP: &str = "umount /sys/fs/cgroup/unified 2>/dev/null;";
const ROOTLESS_SETUP: &str = "mount --bind \"$0/subid\" /etc/subuid && mount --bind \"$0/subid\" /etc/subgid && \
    mkdir -p /run/user && mount -t tmpfs tmpfs /run/user && \
    mkdir -m 700 /run/user/1 && chown 1:1 /run/user/1 && cd \"$0\" && export HOME=\"$0/home\" XDG_RUNTIME_DIR=/run/user/1 && \
    set -- setpriv --reuid=1 --regid=1 --clear-groups \"$@\";";

/// Runs the program behind a setup script. Podman of a rootless user leaves a process that keeps its user namespace, which is ended here.
const RUN: &str = "exec \"$@\"";
const ROOTLESS_RUN: &str = "\"$@\"; status=$?; \
    for file in $(find /run/user/1 -name pause.pid); do kill -9 $(cat $file); done; exit $status";

impl Default for Podman {
    fn default() -> Self {
        Self::new()
    }
}

impl Podman {
    /// Prepares Debian's configuration, the operator's, and an image `localhost/test:1`.
    pub fn new() -> Self {
        Self::of(ROOT_SETUP)
    }

    /// Prepares the same in an environment that crun supports.
    pub fn with_crun() -> Self {
        Self::of(CRUN_SETUP)
    }

    /// Prepares the same for a rootless user (uid 1).
    pub fn rootless() -> Self {
        Self::of(ROOTLESS_SETUP)
    }

    fn of(setup: &'static str) -> Self {
        let test = Self { dir: tempfile::tempdir().expect("the temporary folder is accessible"), setup };
        run(Command::new("cp").args(["-a", "/etc/containers"]).arg(test.path("")));
        fs::write(test.path("subid"), "daemon:100000:65536\n").expect("the temporary folder is accessible");
        if setup == ROOTLESS_SETUP {
            fs::create_dir(test.path("home")).expect("the temporary folder is accessible");
            run(Command::new("chown").args(["-R", "1:1"]).arg(test.path("")));
        }
        fs::write(test.path("containers/containers.conf"), OPERATOR_CONFIG).expect("the temporary folder is accessible");
        run(test.podman().arg("import").arg(import_tar(test.dir.path())).arg("localhost/test:1"));
        test
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a `podman` command.
    pub fn podman(&self) -> Command {
        let mut command = self.in_setup("podman");
        command.args(self.storage());
        command
    }

    /// Returns a shell script in which `podman` is this one, for commands that need each other's runtime folder.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.in_setup("sh");
        let storage = self.storage().join(" ");
        command.arg("-c").arg(format!("podman() {{ command podman {storage} \"$@\"; }}; {script}"));
        command
    }

    fn in_setup(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        let run = if self.setup == ROOTLESS_SETUP { ROOTLESS_RUN } else { RUN };
        let script = format!("mount --bind \"$0/containers\" /etc/containers && {} {run}", self.setup);
        command.args(["--mount", "sh", "-c", &script]).arg(self.dir.path()).arg(program);
        command
    }

    /// Returns the options of its storage.
    fn storage(&self) -> [String; 6] {
        let path = |name| self.path(name).display().to_string();
        ["--root".to_owned(), path("root"), "--runroot".to_owned(), path("run"), "--storage-driver".to_owned(), "vfs".to_owned()]
    }

    /// Returns whether a process is left that has its configuration mounted.
    pub fn has_processes(&self) -> bool {
        let folder = self.path("containers").display().to_string();
        let mounts = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path().join("mountinfo"));
        // The mount's source is its path in the file system of the folder.
        let name = folder.trim_start_matches("/tmp").to_owned();
        mounts.filter_map(|path| fs::read_to_string(path).ok()).any(|text| text.contains(&format!("{name} /etc/containers ")))
    }

    /// Returns its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `vgpu configure podman` on its configuration.
    pub fn configure(&self, args: &[&str]) {
        let config = self.path("containers/containers.conf");
        assert!(vgpu(&[&["configure", "podman", "--config", config.to_str().expect("a UTF-8 path")], args].concat()));
    }

    /// Runs a container that prints `hello`, with `options`. Returns its output.
    pub fn run_hello(&self, options: &[&str]) -> String {
        run(self.podman().args(["run", "--rm", "--network", "none"]).args(options).args(["localhost/test:1", "/bin/echo", "hello"]))
    }

    /// Returns the paths and contents of the files in its /etc/containers.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let list = run(Command::new("find").arg(self.path("containers")).args(["-type", "f"]));
        let mut files: Vec<_> =
            list.lines().map(|path| (path.into(), fs::read(path).expect("the temporary folder is accessible"))).collect();
        files.sort();
        files
    }
}
