//! `vgpu configure` on files of distributions and operators: applied, applied again, shown as a diff, undone.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Folder in the role of /etc.
struct Etc(tempfile::TempDir);

impl Etc {
    fn new(files: &[(&str, &str)]) -> Self {
        let etc = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            let path = etc.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        etc
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs `vgpu configure RUNTIME --config CONFIG ARGS…`.
    fn run(&self, runtime: &str, args: &[&str]) -> Output {
        let config = match runtime {
            "docker" => "docker/daemon.json",
            "containerd" => "containerd/config.toml",
            "crio" => "crio/crio.conf",
            _ => "containers/containers.conf",
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
        command.args(["configure", runtime, "--config"]).arg(self.path(config)).args(args);
        if !args.contains(&"--runtime-path") {
            command.args(["--runtime-path", "/bin/true"]);
        }
        command.output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    fn ok(&self, runtime: &str, args: &[&str]) -> String {
        let output = self.run(runtime, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail without changing a file, and returns its errors.
    fn refused(&self, runtime: &str, args: &[&str]) -> String {
        let before = self.files();
        let output = self.run(runtime, args);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(self.files(), before, "an error changes nothing");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns the contents of all files by path.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn walk(folder: &Path, out: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, out);
                } else {
                    out.insert(path.clone(), fs::read(path).unwrap());
                }
            }
        }
        let mut out = BTreeMap::new();
        walk(self.0.path(), &mut out);
        out
    }
}

const DEBIAN_CONTAINERD: &str = "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      bin_dir = \"/usr/lib/cni\"\n      conf_dir = \"/etc/cni/net.d\"\n  [plugins.\"io.containerd.internal.v1.opt\"]\n    path = \"/var/lib/containerd/opt\"\n";
const OPERATORS_DOCKER: &str = "{\n\t\"log-driver\": \"local\",\n\t\"features\": {\"cdi\": true, \"buildkit\": true},\n\t\"default-runtime\": \"nvidia\",\n\t\"runtimes\": {\n\t\t\"nvidia\": {\"path\": \"nvidia-container-runtime\", \"args\": []}\n\t},\n\t\"max-concurrent-downloads\": 3\n}";

#[test]
fn a_second_run_changes_nothing_and_undo_restores_the_files() {
    let imports = "# Managed by hand.\nversion = 3 # three\n\nimports = [\n  # the registry\n  '/etc/containerd/certs.toml',\n]\n\n[plugins.'io.containerd.cri.v1.runtime'] # CRI\n  enable_selinux=true\n";
    let crio = "[crio.runtime]\n# ours\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nmonitor_path = \"/usr/bin/conmon\"\n";
    for (runtime, files, args) in [
        ("docker", &[][..], &[][..]),
        ("docker", &[], &["--set-as-default"]),
        ("docker", &[("docker/daemon.json", "")], &[]),
        ("docker", &[("docker/daemon.json", "{}")], &[]),
        ("docker", &[("docker/daemon.json", "{ \"runtimes\" : { } }\n")], &["--set-as-default"]),
        ("docker", &[("docker/daemon.json", OPERATORS_DOCKER)], &["--set-as-default"]),
        ("containerd", &[], &[]),
        ("containerd", &[("containerd/config.toml", DEBIAN_CONTAINERD)], &["--set-as-default"]),
        ("containerd", &[("containerd/config.toml", "version = 2\r\nimports=[ ]\r\n")], &[]),
        ("containerd", &[("containerd/config.toml", imports)], &[]),
        ("containerd", &[("containerd/config.toml", "# empty but for this\n")], &[]),
        (
            "containerd",
            &[("containerd/config.toml", "version = 4\nimports = ['conf.d/*.toml']\n"), ("containerd/conf.d/a.toml", "version = 2\n")],
            &[],
        ),
        ("crio", &[], &[]),
        ("crio", &[("crio/crio.conf", crio)], &["--set-as-default"]),
        ("crio", &[("crio/crio.conf", crio)], &["--hooks"]),
        ("podman", &[], &["--set-as-default"]),
        ("podman", &[], &["--hooks"]),
    ] {
        let etc = Etc::new(files);
        let case = format!("{runtime} {args:?} on {files:?}");
        let before = etc.files();

        let diff = etc.ok(runtime, &[args, &["--dry-run"]].concat());
        assert!(diff.starts_with("--- "), "{case}: {diff}");
        assert_eq!(etc.files(), before, "{case}: --dry-run changes nothing");

        etc.ok(runtime, args);
        let done = etc.files();
        assert_ne!(done, before, "{case}");
        assert_eq!(etc.ok(runtime, args), "nothing to do\n", "{case}");
        assert_eq!(etc.ok(runtime, &[args, &["--dry-run"]].concat()), "", "{case}");
        assert_eq!(etc.files(), done, "{case}");

        let undo: &[&str] = &["--undo"];
        assert!(etc.ok(runtime, &["--undo", "--dry-run"]).starts_with("--- "), "{case}");
        assert_eq!(etc.files(), done, "{case}");
        etc.ok(runtime, undo);
        assert_eq!(etc.files(), before, "{case}");
        assert_eq!(etc.ok(runtime, undo), "nothing to do\n", "{case}");
    }
}

#[test]
fn vgpu_stays_the_default_runtime_when_configured_again() {
    for (runtime, file, expected) in [
        ("docker", "docker/daemon.json", "\"default-runtime\": \"vgpu\""),
        ("containerd", "containerd/conf.d/99-vgpu.toml", "default_runtime_name = \"vgpu\""),
        ("crio", "crio/crio.conf.d/99-vgpu.toml", "default_runtime = \"vgpu\""),
        ("podman", "containers/containers.conf.d/99-vgpu.conf", "runtime = \"vgpu\""),
    ] {
        let etc = Etc::new(&[]);
        etc.ok(runtime, &["--set-as-default"]);
        etc.ok(runtime, &["--runtime-path", "/bin/false"]);
        let text = etc.text(file);
        assert!(text.contains(expected) && text.contains("/bin/false"), "{text}");
    }
}

#[test]
fn docker_keeps_every_other_value_and_the_order() {
    let etc = Etc::new(&[("docker/daemon.json", OPERATORS_DOCKER)]);
    etc.ok("docker", &["--set-as-default"]);
    let text = etc.text("docker/daemon.json");
    let mut expected: Value = serde_json::from_str(OPERATORS_DOCKER).unwrap();
    expected["runtimes"]["vgpu"] = json!({"path": "/bin/true"});
    expected["default-runtime"] = json!("vgpu");
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&found).unwrap(), serde_json::to_string(&expected).unwrap());
    assert!(text.contains("\n\t\"log-driver\""), "indentation is kept: {text}");
    assert_eq!(etc.text("docker/daemon.json.vgpu-backup"), OPERATORS_DOCKER);
}

#[test]
fn undo_keeps_later_changes_of_the_operator() {
    let etc = Etc::new(&[("docker/daemon.json", OPERATORS_DOCKER), ("containerd/config.toml", DEBIAN_CONTAINERD)]);
    etc.ok("docker", &["--set-as-default"]);
    etc.ok("containerd", &[]);
    let edit = |name: &str, from: &str, to: &str| {
        let text = etc.text(name);
        assert!(text.contains(from));
        fs::write(etc.path(name), text.replace(from, to)).unwrap();
    };
    edit("docker/daemon.json", "\"local\"", "\"journald\"");
    edit("containerd/config.toml", "\"/usr/lib/cni\"", "\"/opt/cni/bin\" # moved");
    etc.ok("docker", &[]);
    etc.ok("docker", &["--undo"]);
    etc.ok("containerd", &["--undo"]);
    let found: Value = serde_json::from_str(&etc.text("docker/daemon.json")).unwrap();
    let expected: Value = serde_json::from_str(&OPERATORS_DOCKER.replace("\"local\"", "\"journald\"")).unwrap();
    assert_eq!(found, expected, "the operator's default is restored");
    assert_eq!(etc.text("containerd/config.toml"), DEBIAN_CONTAINERD.replace("\"/usr/lib/cni\"", "\"/opt/cni/bin\" # moved"));
    assert_eq!(etc.files().len(), 2, "no file of vgpu is left: {:?}", etc.files().keys());
}

#[test]
fn errors_name_the_cause_and_change_nothing() {
    let etc = Etc::new(&[
        ("docker/daemon.json", "{ \"runtimes\": [] }"),
        ("containerd/config.toml", "disabled_plugins = [\"cri\"]\n"),
        ("crio/crio.conf.d/99-vgpu.toml", "# mine\n"),
        ("containers/containers.conf", "[engine\n"),
    ]);
    for (runtime, args, expected) in [
        ("docker", &[][..], "runtimes: expected an object"),
        ("docker", &["--hooks"], "docker has no hooks.d"),
        ("containerd", &[], "configuration version 1"),
        ("containerd", &["--hooks"], "containerd has no hooks.d"),
        ("crio", &[], "99-vgpu.toml was not written by vgpu"),
        ("podman", &[], "containers.conf: TOML parse error"),
        ("podman", &["--runtime-path", "bin/x"], "expected an absolute path"),
        ("podman", &["--runtime-path", "/a\"b"], "expected an absolute path"),
    ] {
        let error = etc.refused(runtime, args);
        assert!(error.starts_with("vgpu: ") && error.contains(expected), "{runtime} {args:?}: {error}");
    }
    fs::write(etc.path("docker/daemon.json"), "{ // comment\n}").unwrap();
    assert!(etc.refused("docker", &[]).contains("daemon.json: "));
}
