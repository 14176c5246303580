//! Command lines of runc, crun and youki: usual and unusual ones.

use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn read(line: &str) -> Option<Creation> {
    creation(&words(line))
}

#[test]
fn deletions_are_recognised() {
    for (line, id) in [
        ("delete c1", "c1"),
        ("delete --force c1", "c1"),
        ("delete -f c1", "c1"),
        ("--root /r --log /l --log-format json delete --force c1", "c1"),
        ("--root create delete -- -c1", "-c1"),
        ("delete create", "create"),
        ("delete", ""),
    ] {
        assert_eq!(command(&words(line)), Command::Delete(id.into()), "{line}");
    }
    assert_eq!(command(&words("state delete")), Command::Other);
    assert_eq!(command(&words("kill delete 9")), Command::Other);
}

#[test]
fn creations_are_recognised() {
    let cases = [
        ("runc by hand", "run c1", "c1", None, None),
        ("create", "create --bundle /b c1", "c1", Some("/b"), None),
        ("a short flag", "create -b /b c1", "c1", Some("/b"), None),
        ("a short flag with its value", "create -b/b c1", "c1", Some("/b"), None),
        ("with an equals sign", "create --bundle=/b c1", "c1", Some("/b"), None),
        ("one dash before a long name, as in Go", "create -bundle /b c1", "c1", Some("/b"), None),
        ("a prefix of a name, as in getopt", "create --bund /b c1", "c1", Some("/b"), None),
        ("after the id", "create c1 --bundle /b", "c1", Some("/b"), None),
        ("containerd", "--root /r --log /l --log-format json create --bundle /b --pid-file /p c1", "c1", Some("/b"), None),
        ("podman with crun", "--log-format=json --log=/l create --bundle /b --pid-file /p --preserve-fds 3 c1", "c1", Some("/b"), None),
        ("a console", "create --console-socket /s --no-pivot -b /b c1", "c1", Some("/b"), None),
        ("a detached run", "--systemd-cgroup run -d --bundle /b c1", "c1", Some("/b"), None),
        ("combined short flags", "run -db /b c1", "c1", Some("/b"), None),
        ("crun's --config", "create -f /x.json --bundle /b c1", "c1", Some("/b"), Some("/x.json")),
        ("restore", "restore --image-path /i --bundle /b c1", "c1", Some("/b"), None),
        ("a container named create", "run create", "create", None, None),
        ("a log named create", "--log create run c1", "c1", None, None),
        ("an unknown global flag with a value", "--new value create c1", "c1", None, None),
        ("an unknown global switch", "--new create c1", "c1", None, None),
        ("an unknown global flag with an equals sign", "--new=x create c1", "c1", None, None),
        ("two dashes before the id", "create -- -c1", "-c1", None, None),
        ("no id", "create", "", None, None),
        ("help switched off", "run --help=false c1", "c1", None, None),
        ("a bundle named -h", "run --bundle -h c1", "c1", Some("-h"), None),
    ];
    for (description, line, id, bundle, config) in cases {
        let found = read(line).unwrap_or_else(|| panic!("{description}: not recognised"));
        let expected = (OsString::from(id), bundle.map(PathBuf::from), config.map(PathBuf::from));
        assert_eq!((found.id, found.bundle, found.config), expected, "{description}");
    }
}

#[test]
fn other_commands_are_ignored() {
    let lines = [
        "",
        "--version",
        "-v",
        "--help",
        "features",
        "state c1",
        "state create",
        "restore -h",
        "create --help",
        "run --bundle /b -h c1",
        "run -?",
        "kill run 9",
        "--root create state c1",
        "delete --force run",
        "exec c1 run",
        "exec -t create run",
        "--log run ps c1",
        "list",
        "spec --bundle /b",
        "--new state create",
        "unknown create",
        "--root",
    ];
    for line in lines {
        assert_eq!(read(line), None, "{line}");
    }
}

#[test]
fn log_flags() {
    let expected = Global { log: Some("/l".into()), log_format: Some("json".into()), root: Some("/r".into()) };
    for line in [
        "--root /r --log /l --log-format json create c1",
        "--root=/r --log=/l --log-format=json --debug run c1",
        "-root /r -log /l -log-format json create c1",
        "-r /r -l /l --log-format json create c1",
    ] {
        assert_eq!(read(line).map(|creation| creation.global), Some(expected.clone()), "{line}");
    }
}
