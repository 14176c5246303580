//! Podman runs containers with what `vgpu configure` adds to /etc/containers, by runtime and by hooks. Podman's drop-ins
//! have no other place, so it runs in a mount namespace with an /etc/containers of its own.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_daemon_tests::{calls, import_tar, run, stand_in, vgpu};

/// What an operator of a machine without systemd, and without the right to raise limits, writes.
const OPERATORS: &str = "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=1000:1000\"] # low\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n";

struct Test(tempfile::TempDir);

impl Test {
    fn new() -> Self {
        let test = Self(tempfile::tempdir().unwrap());
        run(Command::new("cp").args(["-a", "/etc/containers"]).arg(test.below("")));
        fs::write(test.below("containers/containers.conf"), OPERATORS).unwrap();
        run(test.podman().arg("import").arg(import_tar(test.0.path())).arg("localhost/test:1"));
        test
    }

    fn below(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn podman(&self) -> Command {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$0\" /etc/containers && exec podman \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(self.below("containers"));
        command.arg("--root").arg(self.below("root")).arg("--runroot").arg(self.below("run")).args(["--storage-driver", "vfs"]);
        command
    }

    fn vgpu(&self, args: &[&str]) {
        let config = self.below("containers/containers.conf");
        assert!(vgpu(&[&["configure", "podman", "--config", config.to_str().unwrap()], args].concat()));
    }

    fn says(&self, options: &[&str]) -> String {
        run(self.podman().args(["run", "--rm", "--network", "none"]).args(options).args(["localhost/test:1", "/bin/echo", "hello"]))
    }

    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let list = run(Command::new("find").arg(self.below("containers")).args(["-type", "f"]));
        let mut files: Vec<_> = list.lines().map(|path| (path.into(), fs::read(path).unwrap())).collect();
        files.sort();
        files
    }
}

#[test]
#[ignore = "needs root, podman and runc; make test runs it"]
fn podman_runs_containers_through_the_runtime() {
    let test = Test::new();
    let before = test.files();
    let runtime = stand_in(test.0.path());
    test.vgpu(&["--runtime-path", runtime.to_str().unwrap()]);
    assert_eq!(test.says(&[]), "hello\n");
    assert!(!calls(test.0.path()).exists(), "the operator's runtime stays the default");
    assert_eq!(test.says(&["--runtime", "vgpu", "--annotation", "nvidia.com/gpumem=1024"]), "hello\n");
    assert!(fs::read_to_string(calls(test.0.path())).unwrap().contains("create"));

    fs::remove_file(calls(test.0.path())).unwrap();
    test.vgpu(&["--runtime-path", runtime.to_str().unwrap(), "--set-as-default"]);
    assert_eq!(test.says(&[]), "hello\n");
    assert!(calls(test.0.path()).exists(), "now it is the default");
    // The built-in ones are still known beside ours.
    assert_eq!(test.says(&["--runtime", "runc"]), "hello\n");

    test.vgpu(&["--undo"]);
    assert_eq!(test.files(), before);
}

#[test]
#[ignore = "needs root, podman and runc; make test runs it"]
fn podman_runs_the_hooks_in_their_stages() {
    let test = Test::new();
    let before = test.files();
    let hook = test.below("hook");
    // Notes its arguments, its environment and its state.
    let script = format!(
        "#!/bin/sh\necho \"$0 $* [$(env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | tr '\\n' ' ')] $(cat)\" >> {}\n",
        calls(test.0.path()).display()
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    test.vgpu(&["--hooks", "--hook-path", hook.to_str().unwrap()]);
    assert_eq!(test.says(&["--annotation", "nvidia.com/gpumem=1024", "--env", "LD_PRELOAD=/evil.so"]), "hello\n");

    let notes = fs::read_to_string(calls(test.0.path())).unwrap();
    let stages: Vec<_> = notes.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(stages, ["create-runtime", "create-container", "poststop"], "{notes}");
    for line in notes.lines() {
        assert!(!line.contains("LD_PRELOAD"), "the image's environment does not reach the hook: {line}");
        let state: Value = serde_json::from_str(&line[line.find("] {").unwrap() + 2..]).unwrap();
        assert_eq!(state["annotations"]["nvidia.com/gpumem"], "1024");
    }

    test.vgpu(&["--undo"]);
    assert_eq!(test.files(), before);
    fs::remove_file(calls(test.0.path())).unwrap();
    assert_eq!(test.says(&[]), "hello\n");
    assert!(!Path::new(&calls(test.0.path())).exists());
}
