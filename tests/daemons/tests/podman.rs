//! `vgpu configure podman`: podman runs containers with the additions to /etc/containers, by runtime and by hooks.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use vgpu_daemon_tests::{Podman, call_log, stub_runtime};

#[test]
#[ignore = "needs root, podman and runc; make test runs it"]
fn podman_runs_containers_through_the_runtime() {
    let test = Podman::new();
    let before = test.files();
    let runtime = stub_runtime(test.dir());
    test.configure(&["--runtime-path", runtime.to_str().unwrap()]);
    assert_eq!(test.run_hello(&[]), "hello\n");
    assert!(!call_log(test.dir()).exists(), "the operator's runtime is still the default");
    assert_eq!(test.run_hello(&["--runtime", "vgpu", "--annotation", "nvidia.com/gpumem=1024"]), "hello\n");
    assert!(fs::read_to_string(call_log(test.dir())).unwrap().contains("create"));

    fs::remove_file(call_log(test.dir())).unwrap();
    test.configure(&["--runtime-path", runtime.to_str().unwrap(), "--set-as-default"]);
    assert_eq!(test.run_hello(&[]), "hello\n");
    assert!(call_log(test.dir()).exists(), "vgpu is the default runtime");
    // The built-in runtimes still work.
    assert_eq!(test.run_hello(&["--runtime", "runc"]), "hello\n");

    test.configure(&["--undo"]);
    assert_eq!(test.files(), before);
}

#[test]
#[ignore = "needs root, podman and runc; make test runs it"]
fn podman_runs_the_hook_in_its_stage() {
    let test = Podman::new();
    let before = test.files();
    let hook = test.dir().join("hook");
    // Records its arguments, environment and state.
    let script = format!(
        "#!/bin/sh\necho \"$0 $* [$(env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | tr '\\n' ' ')] $(cat)\" >> {}\n",
        call_log(test.dir()).display()
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    test.configure(&["--hooks", "--hook-path", hook.to_str().unwrap()]);
    assert_eq!(test.run_hello(&["--annotation", "nvidia.com/gpumem=1024", "--env", "LD_PRELOAD=/evil.so"]), "hello\n");

    let notes = fs::read_to_string(call_log(test.dir())).unwrap();
    let stages: Vec<_> = notes.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(stages, ["create-runtime"], "{notes}");
    for line in notes.lines() {
        assert!(!line.contains("LD_PRELOAD"), "the image's environment does not reach the hook: {line}");
        let state: Value = serde_json::from_str(&line[line.find("] {").unwrap() + 2..]).unwrap();
        assert_eq!(state["annotations"]["nvidia.com/gpumem"], "1024");
    }

    test.configure(&["--undo"]);
    assert_eq!(test.files(), before);
    fs::remove_file(call_log(test.dir())).unwrap();
    assert_eq!(test.run_hello(&[]), "hello\n");
    assert!(!Path::new(&call_log(test.dir())).exists());
}
