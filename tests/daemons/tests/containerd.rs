//! `vgpu configure containerd` on the default files of distributions: containerd accepts the result, and `--undo` restores the file.

use std::collections::BTreeSet;
use std::fs;
use toml_edit::{DocumentMut, Item};
use vgpu_daemon_tests::{Containerd, Release, call_log, oci_archive, run, stub_runtime, vgpu};

/// Debian 12's /etc/containerd/config.toml.
const DEBIAN: &str = r#"version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"#;

/// Removes the vgpu handler from a dump and returns the path of its runtime.
fn remove_vgpu_handler(dump: &mut DocumentMut) -> Option<String> {
    dump.remove("imports");
    let plugins = dump.get_mut("plugins")?.as_table_like_mut()?;
    let cri = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"].into_iter().find(|key| plugins.contains_key(key))?;
    let runtimes = plugins.get_mut(cri)?.get_mut("containerd")?.get_mut("runtimes")?.as_table_like_mut()?;
    let ours = runtimes.remove("vgpu")?;
    ours.get("options")?.get("BinaryName")?.as_str().map(str::to_owned)
}

/// Returns the default files of distributions: Debian's, an empty one, and the output of `containerd config default`.
fn defaults(release: &Release) -> Vec<String> {
    let written = run(release.command("containerd").args(["config", "default"]));
    vec![DEBIAN.to_owned(), String::new(), written]
}

#[test]
#[ignore = "needs root and containerd; make test runs it"]
fn configure_adds_only_the_handler() {
    for release in Release::all("containerd") {
        for text in defaults(&release) {
            let test = Containerd::new(release.clone(), &text);
            let case = format!("{} with\n{}", release.name, text.lines().take(4).collect::<Vec<_>>().join("\n"));
            let mut before = test.dump();
            remove_vgpu_handler(&mut before);

            test.configure(&stub_runtime(test.dir()), &[]);
            let mut with = test.dump();
            let program = remove_vgpu_handler(&mut with);
            assert_eq!(program.as_deref(), test.dir().join("vgpu-runtime").to_str(), "{case}");
            let (with, before) = (values(with.as_item()), values(before.as_item()));
            let changed: Vec<_> = with.symmetric_difference(&before).collect();
            assert!(changed.is_empty(), "{case}: {changed:#?}");

            assert!(vgpu(&["configure", "containerd", "--config", test.config().to_str().unwrap(), "--undo"]));
            assert_eq!(fs::read_to_string(test.config()).unwrap(), text, "{case}: restored byte for byte");
            assert_eq!(fs::read_dir(test.config().parent().unwrap().join("conf.d")).unwrap().count(), 0, "{case}");
        }
    }
}

#[test]
#[ignore = "needs root and containerd; make test runs it"]
fn containerd_starts_with_the_configuration() {
    for release in Release::all("containerd") {
        for text in defaults(&release) {
            let test = Containerd::new(release.clone(), &text);
            test.configure(&stub_runtime(test.dir()), &["--set-as-default"]);
            let daemon = test.start();
            let plugins = run(test.ctr().args(["plugins", "ls"]));
            let cri = plugins.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|id| id == "cri" || id == "runtime"));
            for line in cri.clone().filter(|line| line.contains("grpc") || line.contains("cri")) {
                assert!(line.trim_end().ends_with("ok"), "{}: {line}", release.name);
            }
            assert!(cri.count() > 0, "{plugins}");
            drop(daemon);
        }
    }
}

#[test]
#[ignore = "needs root, containerd and runc; make test runs it"]
fn ctr_runs_a_container_through_the_runtime() {
    for release in Release::all("containerd") {
        let test = Containerd::new(release.clone(), DEBIAN);
        test.configure(&stub_runtime(test.dir()), &[]);
        let _daemon = test.start();
        let image = oci_archive(test.dir(), "docker.io/library/test:1", &["/bin/sh"]);
        run(test.ctr().args(["images", "import"]).arg(&image));
        let output = run(test.ctr().args(["run", "--rm", "--runc-binary"]).arg(test.dir().join("vgpu-runtime")).args([
            "--annotation",
            "nvidia.com/gpumem=1024",
            "docker.io/library/test:1",
            "c1",
            "/bin/echo",
            "hello",
        ]));
        assert_eq!(output, "hello\n", "{}", release.name);
        let calls = fs::read_to_string(call_log(test.dir())).unwrap();
        assert!(calls.contains("create"), "{}: {calls}", release.name);
    }
}

/// Returns values by dotted key, without containerd's default values: whether it prints these depends on the handler.
fn values(item: &Item) -> BTreeSet<(String, String)> {
    fn walk(at: &str, item: &Item, out: &mut BTreeSet<(String, String)>) {
        match (item.as_table_like(), item.as_value()) {
            (Some(table), _) => table.iter().for_each(|(key, item)| walk(&format!("{at}.{key}"), item, out)),
            (None, Some(value)) => {
                let value = value.to_string().trim().to_owned();
                if !["0", "\"\"", "''", "false", "[]", "\"podsandbox\""].contains(&value.as_str()) {
                    out.insert((at.to_owned(), value));
                }
            }
            (None, None) => {}
        }
    }
    let mut out = BTreeSet::new();
    walk("", item, &mut out);
    out
}
