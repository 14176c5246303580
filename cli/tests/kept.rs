//! Changes of limits that `vgpu set --persist` keeps can be listed and forgotten, also those of containers that are gone.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

fn set(state_dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vgpu")).arg("set").args(args).arg("--state-dir").arg(state_dir).output().unwrap()
}

fn says(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned())
}

#[test]
fn kept_changes_are_listed_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = dir.path();
    assert_eq!(says(&set(state_dir, &["--kept"])), (Some(0), "no changes of limits are kept\n".to_owned()));
    let folder = state_dir.join("persistent");
    std::fs::create_dir(&folder).unwrap();
    let kept = json!({
        "bundle": "/b",
        "decided": [{ "gpu": "all", "memory": 1_u64 << 30, "cores": 30 }],
        "limits": [{ "gpu": "all", "memory": 2_u64 << 30, "cores": 30, "cores_soft": 60 }],
    });
    for id in ["trainer-1", "trainer-2", "web"] {
        std::fs::write(folder.join(id), kept.to_string()).unwrap();
    }
    std::fs::write(folder.join("damaged"), "{").unwrap();
    let line = |id: &str| {
        let (now, then) = ("2Gi, 30% of the time, up to 60% while it is idle", "1Gi, 30% of the time");
        format!("{id}: {now}; its request comes to {then}; bundle /b\n")
    };
    assert_eq!(says(&set(state_dir, &["--kept"])), (Some(0), ["trainer-1", "trainer-2", "web"].map(line).concat()));
    for (name, status, expected) in [
        ("we", 0, "web: when it is started again, its request decides\n"),
        ("web", 1, "expected the ID or name of a container"),
        ("trainer", 1, "expected the ID or name of a container"),
        ("trainer-1", 0, "trainer-1: when it is started again"),
        ("../web", 1, "expected the ID or name of a container"),
    ] {
        let (code, text) = says(&set(state_dir, &[name, "--forget"]));
        assert!(code == Some(status) && text.contains(expected), "{name}: {code:?} {text}");
    }
    assert_eq!(says(&set(state_dir, &["--kept"])), (Some(0), line("trainer-2")));
    for args in [&["--forget"][..], &["web", "--forget", "--gpucores", "20"], &["--kept", "--persist"], &["web"], &["--gpucores", "20"]] {
        assert_eq!(set(state_dir, args).status.code(), Some(2), "{args:?}");
    }
}
