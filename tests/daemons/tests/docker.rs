//! dockerd runs with what `vgpu configure` makes of its file, and knows the runtime.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_daemon_tests::{Daemon, Release, calls, import_tar, run, stand_in, vgpu};

/// A file as an operator may have it. Debian ships none.
const OPERATORS: &str = "{\n    \"log-driver\": \"json-file\",\n    \"log-opts\": {\"max-size\": \"10m\"},\n    \"features\": {\"buildkit\": true},\n    \"runtimes\": {\"other\": {\"path\": \"/usr/sbin/runc\"}}\n}\n";

struct Test {
    release: Release,
    dir: tempfile::TempDir,
    config: PathBuf,
}

impl Test {
    fn new(release: Release, text: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("etc/daemon.json");
        fs::create_dir(dir.path().join("etc")).unwrap();
        if let Some(text) = text {
            fs::write(&config, text).unwrap();
        }
        Self { release, dir, config }
    }

    fn below(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configure(&self, runtime: &Path, args: &[&str]) {
        let fixed = ["configure", "docker", "--config", self.config.to_str().unwrap(), "--runtime-path", runtime.to_str().unwrap()];
        assert!(vgpu(&[&fixed, args].concat()));
    }

    fn docker(&self) -> Command {
        let mut docker = self.release.command("docker");
        docker.env("DOCKER_HOST", format!("unix://{}", self.below("d.sock").display()));
        docker.env("DOCKER_CONFIG", self.below("client"));
        docker
    }

    fn start(&self) -> Daemon {
        let mut command = self.release.command("dockerd");
        command.arg("--config-file").arg(&self.config);
        command.arg("--data-root").arg(self.below("data")).arg("--exec-root").arg(self.below("exec"));
        command.arg("--pidfile").arg(self.below("pid")).arg("-H").arg(format!("unix://{}", self.below("d.sock").display()));
        command.args(["--bridge", "none", "--iptables=false", "--ip6tables=false"]);
        Daemon::start(&mut command, self.dir.path(), || self.docker().arg("version").output().is_ok_and(|output| output.status.success()))
    }
}

#[test]
#[ignore = "needs root, dockerd and runc; make test runs it"]
fn docker_runs_containers_through_the_runtime() {
    for release in Release::all("dockerd") {
        for text in [None, Some(OPERATORS)] {
            let test = Test::new(release.clone(), text);
            test.configure(&stand_in(test.dir.path()), &[]);
            let daemon = test.start();
            let info: Value = serde_json::from_str(&run(test.docker().args(["info", "--format", "{{json .}}"]))).unwrap();
            assert_eq!(info["Runtimes"]["vgpu"]["path"], test.below("vgpu-runtime").to_str().unwrap(), "{}", release.name);
            assert_eq!(info["DefaultRuntime"], "runc");
            assert_eq!(info["Runtimes"].get("other").is_some(), text.is_some());

            run(test.docker().arg("import").arg(import_tar(test.dir.path())).arg("test:1"));
            let run_it = ["run", "--rm", "--network", "none"];
            let says = run(test.docker().args(run_it).args(["test:1", "/bin/echo", "without"]));
            assert_eq!(says, "without\n");
            // dockerd itself asks a runtime for its features.
            let created = || fs::read_to_string(calls(test.dir.path())).unwrap_or_default().contains(" create ");
            assert!(!created(), "not the default");
            let says = run(test.docker().args(run_it).args(["--runtime", "vgpu", "test:1", "/bin/echo", "with"]));
            assert_eq!(says, "with\n");
            assert!(created());
            drop(daemon);

            assert!(vgpu(&["configure", "docker", "--config", test.config.to_str().unwrap(), "--undo"]));
            assert_eq!(fs::read_to_string(&test.config).ok().as_deref(), text, "undone to the byte");
        }
    }
}

#[test]
#[ignore = "needs root and dockerd; make test runs it"]
fn a_running_dockerd_takes_the_default_up_on_reload() {
    for release in Release::all("dockerd") {
        let test = Test::new(release.clone(), Some(OPERATORS));
        let daemon = test.start();
        test.configure(&stand_in(test.dir.path()), &["--set-as-default"]);
        daemon.reload();
        let mut is_default = false;
        for _ in 0..100 {
            is_default = run(test.docker().args(["info", "--format", "{{.DefaultRuntime}}"])) == "vgpu\n";
            if is_default {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        assert!(is_default, "{}", release.name);
    }
}
