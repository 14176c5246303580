//! Locations of the driver's libraries in a container, searched in the container's mount namespace after the libraries were mounted.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pathrs::Root;
use vgpu_region::paths;

use crate::injected::DRIVER_LIBRARIES;
use crate::rootfs::{Rootfs, fd_path};

/// Directories that the loader searches, and those into which NVIDIA's tools mount.
pub const DEFAULT_DIRECTORIES: [&str; 11] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
];

/// Directory of a newer driver library in images, which programs use on a host with an older driver (CUDA's forward compatibility).
const COMPATIBILITY: &str = "/usr/local/cuda/compat";

/// Directories of libraries below a mounted directory.
const SUBDIRECTORIES: [&str; 7] =
    ["", "/lib", "/lib64", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/// Returns the directories to search, in order: those in `library_path`, as for the loader, the default ones, and those that are mounted.
/// Where the library is also preloaded (`is_preloaded`), the image's newer driver library is left alone, for programs that choose it when
/// they start: replaced, it would be the host's.
pub fn directories(root: &Root, rootfs: &Rootfs, library_path: &str, is_preloaded: bool) -> Vec<String> {
    let named = library_path.split([':', ';']).filter(|directory| directory.starts_with('/'));
    let mut directories: Vec<String> = named.chain(DEFAULT_DIRECTORIES).map(str::to_owned).collect();
    directories.extend((!is_preloaded).then(|| COMPATIBILITY.to_owned()));
    for mounted in mount_points(rootfs) {
        let Some(path) = mounted.to_str() else { continue };
        if ["/proc", "/sys", "/dev", paths::DRIVER].iter().any(|other| mounted.starts_with(other)) {
            continue;
        }
        let is_dir = root.resolve(path).is_ok_and(|found| fs::metadata(fd_path(&OwnedFd::from(found))).is_ok_and(|found| found.is_dir()));
        if is_dir {
            directories.extend(SUBDIRECTORIES.iter().map(|below| format!("{}{below}", path.trim_end_matches('/'))));
        } else if let Some(parent) = mounted.parent().and_then(Path::to_str) {
            let name = mounted.file_name().unwrap_or_default();
            if DRIVER_LIBRARIES.iter().any(|library| is_version_of(name, library)) {
                directories.push(parent.to_owned());
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    directories.retain(|directory| seen.insert(directory.clone()));
    directories
}

/// Returns the paths that the library `name` may have in these directories, in any version. Those of exactly this name, which programs
/// load, come first, whether or not they exist.
pub fn library_files(root: &Root, directories: &[String], name: &str) -> Vec<String> {
    let mut files: Vec<String> = directories.iter().map(|directory| format!("{directory}/{name}")).collect();
    for directory in directories {
        let Ok(found) = root.resolve(directory).map(OwnedFd::from) else { continue };
        let Ok(entries) = fs::read_dir(fd_path(&found)) else { continue };
        let names = entries.flatten().map(|entry| entry.file_name()).filter(|entry| entry != name && is_version_of(entry, name));
        files.extend(names.filter_map(|entry| Some(format!("{directory}/{}", entry.to_str()?))));
    }
    files
}

/// Returns whether a file name is that of a library such as `libcuda.so.1`, in this version, another one, or without version.
fn is_version_of(name: &OsStr, library: &str) -> bool {
    let stem = library.trim_end_matches(".1");
    let rest = name.as_bytes().strip_prefix(stem.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// Returns the mount points in the root file system, as paths in the container.
fn mount_points(rootfs: &Rootfs) -> Vec<PathBuf> {
    let read = || {
        let root = rootfs.try_clone().ok()?;
        let root = fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).ok()?;
        Some(mount_points_below(&root, File::open("/proc/self/mountinfo").and_then(std::io::read_to_string).ok()?.as_str()))
    };
    read().unwrap_or_default()
}

fn mount_points_below(root: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    points.filter_map(|point| Some(Path::new("/").join(point.strip_prefix(root).ok()?))).filter(|point| point != Path::new("/")).collect()
}

/// Decodes a path of `/proc/self/mountinfo`, where white space and backslashes are three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let code = others.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) if first == b'\\' => (bytes.push(code), rest = &others[3..]).1,
            _ => (bytes.push(first), rest = others).1,
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_of_a_container() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     30 22 254:0 /x /b/rootfs rw - ext4 /dev/vda rw\n\
                     31 30 254:0 /y /b/rootfs/opt/my\\040driver\\134x ro - ext4 /dev/vda rw\n\
                     32 30 254:0 /z /b/rootfs2/opt rw - ext4 /dev/vda rw\n";
        assert_eq!(mount_points_below(Path::new("/b/rootfs"), table), [PathBuf::from("/opt/my driver\\x")]);
        assert_eq!(mount_points_below(Path::new("/"), table).len(), 3);
    }

    #[test]
    fn library_versions() {
        for (name, expected) in [
            ("libcuda.so", true),
            ("libcuda.so.1", true),
            ("libcuda.so.580.159.04", true),
            ("libcudart.so.13", false),
            ("libcuda.so_", false),
            ("xlibcuda.so", false),
        ] {
            assert_eq!(is_version_of(OsStr::new(name), "libcuda.so.1"), expected, "{name}");
        }
    }
}
