//! A file system without room for a region: an error, and not the end of the process by SIGBUS.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use vgpu_region::map;

#[test]
fn a_full_file_system_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "vgpu-test"]).arg(folder.path()).status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this test mounts a file system, as root");
        return;
    }
    let path = folder.path().join("region");
    // A region of an earlier version, of which only the pages in use have memory.
    map::format(std::fs::File::create(&path).unwrap().as_raw_fd()).unwrap();
    let joined = map::join(&CString::new(path.as_os_str().as_bytes()).unwrap(), 1, 1).map(|member| member.index);
    let unmounted = Command::new("umount").arg("--lazy").arg(folder.path()).status().unwrap();
    assert_eq!(joined, Err(map::Error::System { call: "fallocate", errno: libc::ENOSPC }));
    assert!(unmounted.success());
}
