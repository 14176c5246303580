//! `vgpu configure docker`: dockerd accepts the result and runs containers with the runtime.

use serde_json::Value;
use std::fs;
use vgpu_daemon_tests::{Docker, Release, call_log, import_tar, run, stub_runtime, vgpu};

/// Configuration of an operator. Debian ships none.
const OPERATOR_CONFIG: &str = r#"{
    "log-driver": "json-file",
    "log-opts": {"max-size": "10m"},
    "features": {"buildkit": true},
    "runtimes": {"other": {"path": "/usr/sbin/runc"}}
}
"#;

#[test]
#[ignore = "needs root, dockerd and runc; make test runs it"]
fn docker_runs_containers_through_the_runtime() {
    for release in Release::all("dockerd") {
        for text in [None, Some(OPERATOR_CONFIG)] {
            let test = Docker::new(release.clone(), text);
            test.configure(&stub_runtime(test.dir()), &[]);
            let daemon = test.start();
            let info: Value = serde_json::from_str(&run(test.docker().args(["info", "--format", "{{json .}}"]))).unwrap();
            assert_eq!(info["Runtimes"]["vgpu"]["path"], test.dir().join("vgpu-runtime").to_str().unwrap(), "{}", release.name);
            assert_eq!(info["DefaultRuntime"], "runc");
            assert_eq!(info["Runtimes"].get("other").is_some(), text.is_some());

            run(test.docker().arg("import").arg(import_tar(test.dir())).arg("test:1"));
            let run_it = ["run", "--rm", "--network", "none"];
            let output = run(test.docker().args(run_it).args(["test:1", "/bin/echo", "without"]));
            assert_eq!(output, "without\n");
            // dockerd also runs the runtime's `features` command.
            let created = || fs::read_to_string(call_log(test.dir())).unwrap_or_default().contains(" create ");
            assert!(!created(), "vgpu is not the default runtime");
            let output = run(test.docker().args(run_it).args(["--runtime", "vgpu", "test:1", "/bin/echo", "with"]));
            assert_eq!(output, "with\n");
            assert!(created());
            drop(daemon);

            assert!(vgpu(&["configure", "docker", "--config", test.config().to_str().unwrap(), "--undo"]));
            assert_eq!(fs::read_to_string(test.config()).ok().as_deref(), text, "restored byte for byte");
        }
    }
}

#[test]
#[ignore = "needs root and dockerd; make test runs it"]
fn reload_applies_the_default_runtime() {
    for release in Release::all("dockerd") {
        let test = Docker::new(release.clone(), Some(OPERATOR_CONFIG));
        let daemon = test.start();
        test.configure(&stub_runtime(test.dir()), &["--set-as-default"]);
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
