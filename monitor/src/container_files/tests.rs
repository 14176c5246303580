use super::*;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

fn open(root: impl AsRef<Path>, path: &str) -> io::Result<File> {
    open_file(&File::open(root).unwrap(), path, OFlags::empty(), |_| Ok(true))
}

#[test]
fn existing_files_are_opened_and_missing_ones_created() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("folder/x"), "text").unwrap();
    let mut text = String::new();
    open(dir.path(), "/folder/x").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    for name in ["new", "/folder/new", "./folder/./other"] {
        open(dir.path(), name).unwrap();
        assert!(dir.path().join(name.trim_start_matches('/')).exists(), "{name}");
    }
    let refused = open_file(&File::open(dir.path()).unwrap(), "folder/x", OFlags::empty(), |_| Ok(false));
    assert!(refused.unwrap_err().to_string().starts_with("expected no file"));
}

/// Writing there has effects beside the file.
#[test]
fn file_systems_with_effects_are_refused() {
    for (root, path) in [("/", "/proc/self/comm"), ("/", "/proc/sys/kernel/domainname"), ("/proc", "self/new"), ("/", "/sys/kernel/new")] {
        if !Path::new("/sys/kernel").exists() && path.starts_with("/sys") {
            continue;
        }
        let error = open(root, path).unwrap_err().to_string();
        // "self" is a symbolic link.
        assert!(error.contains("file system of type") || error.contains("symbolic"), "{path}: {error}");
    }
    let folder = open_dir(&File::open("/").unwrap(), &format!("/proc/{}/new", std::process::id()));
    assert!(folder.unwrap_err().to_string().contains("file system of type 0x9fa0"));
}

/// Even opening a device has effects, so the terminal of a new session stays unused, and FIFOs are not waited for.
#[test]
fn other_kinds_of_files_are_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("twice"), "").unwrap();
    fs::hard_link(at("twice"), at("second-name")).unwrap();
    symlink(at("twice"), at("link")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    for name in ["folder", "twice", "link", "fifo", "", "/", "..", "missing/x", "new/"] {
        let opened = open(dir.path(), name);
        assert!(opened.is_err(), "{name}");
    }
    assert!(open("/", "/dev/null").is_err());
    assert!(open_dir(&File::open(dir.path()).unwrap(), "folder/../other").is_err());
}

#[test]
fn files_of_other_users_stay() {
    if !geteuid().is_root() {
        return eprintln!("SKIPPED: expected root, to give a file away");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x"), "").unwrap();
    chown(dir.path().join("x"), Some(65_534), None).unwrap();
    assert!(open(dir.path(), "x").is_err());
}
