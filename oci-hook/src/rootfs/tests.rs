//! Hostile root file systems.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

fn rootfs(build: impl FnOnce(&Path)) -> (tempfile::TempDir, Rootfs) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("root")).unwrap();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("outside/secret"), "secret").unwrap();
    build(&dir.path().join("root"));
    let rootfs = Rootfs::open(&dir.path().join("root")).unwrap();
    (dir, rootfs)
}

#[test]
fn files_are_created_and_read() {
    let (dir, rootfs) = rootfs(|root| fs::create_dir(root.join("etc")).unwrap());
    assert_eq!(rootfs.read("/etc/ld.so.preload", 10).unwrap(), None);
    assert_eq!(rootfs.read("/usr/local/x", 10).unwrap(), None);
    rootfs.create_file("/etc/ld.so.preload").unwrap();
    rootfs.create_file("/usr/local/vgpu/limits").unwrap();
    assert_eq!(fs::read(dir.path().join("root/usr/local/vgpu/limits")).unwrap(), b"");
    fs::write(dir.path().join("root/etc/ld.so.preload"), "0123456789").unwrap();
    rootfs.create_file("/etc/ld.so.preload").unwrap();
    assert_eq!(rootfs.read("/etc/ld.so.preload", 10).unwrap().as_deref(), Some("0123456789"), "an existing file is kept");
    assert!(rootfs.read("/etc/ld.so.preload", 9).unwrap_err().to_string().contains("longer than 9 bytes"));
}

#[test]
fn symbolic_links_are_refused() {
    type Build = fn(&Path);
    let cases: [(&str, Build, &str); 8] = [
        ("an absolute link instead of the directory", |root| symlink("/tmp", root.join("etc")).unwrap(), "/etc in"),
        ("a link out of the root", |root| symlink("../outside", root.join("etc")).unwrap(), "/etc in"),
        (
            "a link inside the root",
            |root| {
                fs::create_dir(root.join("real")).unwrap();
                symlink("real", root.join("etc")).unwrap();
            },
            "/etc in",
        ),
        ("a dangling link", |root| symlink("nowhere", root.join("etc")).unwrap(), "/etc in"),
        (
            "a link instead of the file",
            |root| {
                fs::create_dir(root.join("etc")).unwrap();
                symlink("../../outside/secret", root.join("etc/ld.so.preload")).unwrap();
            },
            "/etc/ld.so.preload in",
        ),
        ("a directory instead of the file", |root| fs::create_dir_all(root.join("etc/ld.so.preload")).unwrap(), "not a regular file"),
        ("a file instead of the directory", |root| fs::write(root.join("etc"), "").unwrap(), "/etc in"),
        (
            "a FIFO instead of the file, which would block",
            |root| {
                fs::create_dir(root.join("etc")).unwrap();
                let created = std::process::Command::new("mkfifo").arg(root.join("etc/ld.so.preload")).status().unwrap();
                assert!(created.success());
            },
            "not a regular file",
        ),
    ];
    for (description, build, expected) in cases {
        let (dir, rootfs) = rootfs(build);
        for error in [rootfs.read("/etc/ld.so.preload", 100).unwrap_err(), rootfs.create_file("/etc/ld.so.preload").unwrap_err()] {
            assert!(error.to_string().contains(expected), "{description}: {error}");
        }
        assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1, "{description}: nothing was created outside");
        assert_eq!(fs::read(dir.path().join("outside/secret")).unwrap(), b"secret", "{description}");
    }
}

#[test]
fn nothing_is_created_through_an_exchanged_directory() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (dir, rootfs) = rootfs(|root| {
        fs::create_dir(root.join("etc")).unwrap();
        symlink("../outside", root.join("flip")).unwrap();
    });
    let root = dir.path().join("root");
    let done = AtomicBool::new(false);
    let mut created = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, root.join("etc"), CWD, root.join("flip"), exchange).unwrap();
            }
        });
        for _ in 0..5000 {
            created += u32::from(rootfs.create_file("/etc/ld.so.preload").is_ok());
            let _ = fs::remove_file(root.join("etc/ld.so.preload"));
            let _ = fs::remove_file(root.join("flip/ld.so.preload"));
            assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1, "created outside the root");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(created > 0, "the directory was never open at the right time");
}

#[test]
fn only_regular_files_are_opened() {
    let (dir, rootfs) = rootfs(|_| {});
    let path = |name: &str| dir.path().join("root").join(name);
    rustix::fs::mknodat(CWD, path("pipe"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    std::fs::write(path("file"), "x").unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("link")).unwrap();
    // A pipe would be waited for, and a device has no end.
    for name in ["pipe", "link", "."] {
        assert!(open_regular(&path(name)).is_err() && rootfs.read(name, 10).is_err(), "{name}");
    }
    assert_eq!(read_text(open_regular(&path("file")).unwrap(), 10).unwrap(), "x");
    assert_eq!(rootfs.read("file", 10).unwrap().unwrap(), "x");
}
