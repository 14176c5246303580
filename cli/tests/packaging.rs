//! The files of the packages agree with the programs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_config::Policy;

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(packaging(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns whether a line is a setting, `#key = value`. Comments start with `# `.
fn is_setting(line: &str) -> bool {
    line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase())
}

#[test]
fn every_program_has_a_manual_page() {
    let script = text("build.sh");
    let programs: Vec<&str> = script.split_whitespace().filter_map(|word| word.strip_prefix("/usr/bin/")).collect();
    assert!(programs.len() >= 5, "{programs:?}");
    // `vgpu generate` writes the pages of vgpu.
    for program in programs.into_iter().filter(|program| *program != "vgpu") {
        let page = text(&format!("man/{program}.1"));
        assert!(page.contains(".TH"), "{program}");
    }
}

#[test]
fn the_shipped_policy_file_sets_nothing() {
    assert_eq!(Policy::parse(&text("config.toml")).unwrap(), Policy::default());
}

#[test]
fn each_setting_in_the_policy_file_is_valid_and_shows_its_default() {
    let shipped = text("config.toml");
    let shown: String = shipped.lines().map(|line| if is_setting(line) { &line[1..] } else { line }).collect::<Vec<_>>().join("\n");
    let mut policy = Policy::parse(&shown).unwrap();
    assert!(policy.defaults.memory.is_some() && policy.ceilings.cores_soft.is_some(), "settings without a default show an example");
    // Settings that are unset by default show an example.
    let default = Policy::default();
    policy.defaults = default.defaults.clone();
    policy.ceilings = vgpu_config::policy::Ceilings {
        oversubscribe_percent: policy.ceilings.oversubscribe_percent,
        priority: policy.ceilings.priority,
        ..default.ceilings.clone()
    };
    assert_eq!(policy.state_dir.take(), Some(default.state_dir(None)));
    assert_eq!(policy.hook.take(), Some("/usr/bin/vgpu-hook".into()));
    assert_eq!(policy.mps.pipe_directory.take(), Some("/tmp/nvidia-mps".into()));
    assert_eq!(policy, default);
}

#[test]
fn the_policy_file_has_every_setting() {
    // serde lists the known fields in its error about an unknown one.
    let shipped = text("config.toml");
    let mut sections = vec![String::new()];
    sections.extend(shipped.lines().filter(|line| line.starts_with('[')).map(|line| format!("{line}\n")));
    for section in sections {
        let error = toml_edit::de::from_str::<Policy>(&format!("{section}no_such_key = 1\n")).unwrap_err().message().to_owned();
        let (_, known) = error.split_once("expected one of").or_else(|| error.split_once("expected ")).unwrap_or_else(|| panic!("{error}"));
        for key in known.split('`').skip(1).step_by(2) {
            let there = [format!("\n#{key} = "), format!("\n[{key}]\n")].iter().any(|line| shipped.contains(line));
            assert!(there, "{section}{key} is not in packaging/config.toml");
        }
    }
}

#[test]
fn manifests_have_the_current_version_and_handler() {
    let image = format!("image: vgpu:{}\n", env!("CARGO_PKG_VERSION"));
    assert!(text("kubernetes/daemonset.yaml").contains(&image));
    assert!(text("kubernetes/runtimeclass.yaml").contains(&format!("\nhandler: {}\n", vgpu_cli::configure::HANDLER)));
    for pod in ["kubernetes/pod.yaml", "kubernetes/pod-hami.yaml"] {
        assert!(text(pod).contains("runtimeClassName: vgpu\n"), "{pod}");
    }
}

/// Writes a staged release, as packaging/build.sh does.
fn stage(folder: &Path, version: &str) {
    for (name, mode) in [
        ("usr/bin/vgpu", 0o755),
        ("usr/bin/vgpu-runtime", 0o755),
        ("usr/bin/vgpu-hook", 0o755),
        ("usr/share/man/man1/vgpu.1.gz", 0o644),
        ("etc/vgpu/config.toml", 0o644),
        ("usr/lib/vgpu/front/libcuda.so.1", 0o644),
        ("usr/lib/vgpu/front/libnvidia-ml.so.1", 0o644),
    ] {
        let path = folder.join("root").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\necho {name} {version}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let lib = folder.join("root/usr/lib/vgpu");
    fs::create_dir_all(&lib).unwrap();
    fs::write(lib.join(format!("libvgpu.so.{version}")), version).unwrap();
    symlink(format!("libvgpu.so.{version}"), lib.join("libvgpu.so")).unwrap();
    fs::write(folder.join("VERSION"), format!("{version}\n")).unwrap();
    fs::copy(packaging("install.sh"), folder.join("install.sh")).unwrap();
    fs::copy(packaging("image/node.sh"), folder.join("node.sh")).unwrap();
}

fn files(root: &Path) -> BTreeMap<String, String> {
    let list = Command::new("find").arg(root).args(["-type", "f", "-printf", "%P\\n"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    list.lines().map(|name| (name.to_owned(), fs::read_to_string(root.join(name)).unwrap())).collect()
}

#[test]
fn the_library_is_never_partial_or_missing_during_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("machine");
    let library = root.join("usr/lib/vgpu/libvgpu.so");
    let install = |version: &str, action: &str| {
        let release = dir.path().join(version);
        if !release.exists() {
            fs::create_dir(&release).unwrap();
            stage(&release, version);
        }
        assert!(Command::new(release.join("install.sh")).arg(action).env("ROOT", &root).status().unwrap().success());
    };
    install("1.0.0", "install");
    assert_eq!(fs::read_to_string(&library).unwrap(), "1.0.0");
    fs::write(root.join("etc/vgpu/config.toml"), "# operator's\n").unwrap();
    // Files that a running container has mounted or a process executes.
    let (held, program) = (fs::File::open(&library).unwrap(), fs::File::open(root.join("usr/bin/vgpu-runtime")).unwrap());

    let reader = std::thread::spawn({
        let (library, stop) = (library.clone(), dir.path().join("stop"));
        move || {
            let mut seen = std::collections::BTreeSet::new();
            while !stop.exists() {
                seen.insert(fs::read_to_string(&library).expect("the library always exists"));
            }
            seen
        }
    });
    for _ in 0..10 {
        install("2.0.0", "install");
        install("1.0.0", "install");
    }
    install("2.0.0", "install");
    fs::write(dir.path().join("stop"), "").unwrap();
    let seen = reader.join().unwrap();
    assert!(seen.iter().all(|text| text == "1.0.0" || text == "2.0.0"), "{seen:?}");

    assert_eq!(fs::read_to_string(&library).unwrap(), "2.0.0");
    assert_eq!(std::io::read_to_string(held).unwrap(), "1.0.0", "an open file keeps its content");
    assert!(std::io::read_to_string(program).unwrap().contains("1.0.0"));
    assert_eq!(fs::metadata(root.join("usr/bin/vgpu-runtime")).unwrap().mode() & 0o777, 0o755);
    assert_eq!(fs::read_to_string(root.join("etc/vgpu/config.toml")).unwrap(), "# operator's\n");

    install("2.0.0", "uninstall");
    assert_eq!(files(&root), BTreeMap::from([("etc/vgpu/config.toml".to_owned(), "# operator's\n".to_owned())]));
}

#[test]
fn the_runtime_stays_while_it_has_containers() {
    let dir = tempfile::tempdir().unwrap();
    let (root, release) = (dir.path().join("machine"), dir.path().join("release"));
    fs::create_dir_all(root.join("run/vgpu/containers/c1")).unwrap();
    fs::create_dir(&release).unwrap();
    stage(&release, "1.0.0");
    for action in ["install", "uninstall"] {
        assert!(Command::new(release.join("install.sh")).arg(action).env("ROOT", &root).status().unwrap().success());
    }
    let left: Vec<_> = files(&root).into_keys().collect();
    assert_eq!(left, ["etc/vgpu/config.toml", "usr/bin/vgpu-hook", "usr/bin/vgpu-runtime"]);
}

#[test]
fn a_node_is_installed_registered_restarted_once_and_uninstalled() {
    let dir = tempfile::tempdir().unwrap();
    let (host, release) = (dir.path().join("host"), dir.path().join("release"));
    fs::create_dir_all(&host).unwrap();
    fs::create_dir(&release).unwrap();
    stage(&release, "1.0.0");
    // Takes the place of nsenter: records the commands, and runs the real `vgpu` on the node's files.
    let (enter, log) = (dir.path().join("enter"), dir.path().join("log"));
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {}\ncase $1 in */vgpu) shift; [ $1 = check ] && exit 1; exec {} \"$@\" --config {} ;; esac\n",
        log.display(),
        env!("CARGO_BIN_EXE_vgpu"),
        host.join("etc/containerd/config.toml").display()
    );
    fs::write(&enter, script).unwrap();
    fs::set_permissions(&enter, fs::Permissions::from_mode(0o755)).unwrap();
    let node = |uninstall: &str| {
        let mut command = Command::new(release.join("node.sh"));
        command.env("HOST", &host).env("ENTER", &enter).env("STAY", "no").env("UNINSTALL", uninstall);
        assert!(command.output().unwrap().status.success());
        // Without vgpu on the node, nothing of it is run.
        let commands = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        commands.lines().filter(|line| line.starts_with("systemctl")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(node("no"), ["systemctl restart containerd"]);
    assert!(files(&host).contains_key("etc/containerd/conf.d/99-vgpu.toml"));
    assert!(node("no").is_empty(), "no restart without a change");
    // Specifications of CDI name the hook, those of others do not.
    let cdi = host.join("var/run/cdi");
    fs::create_dir_all(&cdi).unwrap();
    for name in ["vgpu.io-share.json", "vgpu.io-claim_0123.json", "nvidia.com-gpu.json", "vgpu.io-notes.txt"] {
        fs::write(cdi.join(name), "{}").unwrap();
    }
    assert!(node("no").is_empty());
    assert!(files(&host).contains_key("var/run/cdi/vgpu.io-share.json"), "they stay while vgpu is installed");
    assert_eq!(node("yes"), ["systemctl restart containerd"]);
    let left: Vec<_> = files(&host).into_keys().collect();
    assert_eq!(left, ["etc/vgpu/config.toml", "var/run/cdi/nvidia.com-gpu.json", "var/run/cdi/vgpu.io-notes.txt"]);
    assert!(node("yes").is_empty(), "it can be repeated");
}
