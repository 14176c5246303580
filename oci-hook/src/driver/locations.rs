//! Where the driver's libraries may be in a container. Looked at from inside the container's mount namespace, where whatever brings
//! them has already mounted them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pathrs::Root;
use vgpu_region::paths;

use crate::injected::LIBRARIES;
use crate::rootfs::{Rootfs, fd_path};

/// Where the loader finds them, and where NVIDIA's tools put them.
pub const USUAL: [&str; 12] = [
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
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
];

/// Where in a folder that is mounted as a whole they may be.
const WITHIN: [&str; 7] =
    ["", "/lib", "/lib64", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/// The folders to look into, in order: the usual ones, those that the program names, those that are mounted.
pub fn all(root: &Root, rootfs: &Rootfs, library_path: &str) -> Vec<String> {
    let mut places: Vec<String> = USUAL.map(str::to_owned).to_vec();
    places.extend(library_path.split([':', ';']).filter(|folder| folder.starts_with('/')).map(str::to_owned));
    for mounted in mounted(rootfs) {
        let Some(path) = mounted.to_str() else { continue };
        if ["/proc", "/sys", "/dev", paths::DRIVER].iter().any(|other| mounted.starts_with(other)) {
            continue;
        }
        let is_folder =
            root.resolve(path).is_ok_and(|found| fs::metadata(fd_path(&OwnedFd::from(found))).is_ok_and(|found| found.is_dir()));
        if is_folder {
            places.extend(WITHIN.iter().map(|within| format!("{}{within}", path.trim_end_matches('/'))));
        } else if let Some(folder) = mounted.parent().and_then(Path::to_str) {
            let name = mounted.file_name().unwrap_or_default();
            if LIBRARIES.iter().any(|library| is_version_of(name, library)) {
                places.push(folder.to_owned());
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    places.retain(|place| seen.insert(place.clone()));
    places
}

/// The files in these folders that are the library `name` in any version; that of this very name first, as it is what programs get.
pub fn files(root: &Root, places: &[String], name: &str) -> Vec<String> {
    let mut files: Vec<String> = places.iter().map(|folder| format!("{folder}/{name}")).collect();
    for folder in places {
        let Ok(found) = root.resolve(folder).map(OwnedFd::from) else { continue };
        let Ok(entries) = fs::read_dir(fd_path(&found)) else { continue };
        let names = entries.flatten().map(|entry| entry.file_name()).filter(|entry| entry != name && is_version_of(entry, name));
        files.extend(names.filter_map(|entry| Some(format!("{folder}/{}", entry.to_str()?))));
    }
    files
}

/// Whether a file's name is that of a library such as `libcuda.so.1`, in this version, another, or none.
fn is_version_of(name: &OsStr, library: &str) -> bool {
    let stem = library.trim_end_matches(".1");
    let rest = name.as_bytes().strip_prefix(stem.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// Where something is mounted in the root file system, as paths in the container.
fn mounted(rootfs: &Rootfs) -> Vec<PathBuf> {
    let read = || {
        let root = rootfs.try_clone().ok()?;
        let root = fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).ok()?;
        Some(inside(&root, File::open("/proc/self/mountinfo").and_then(std::io::read_to_string).ok()?.as_str()))
    };
    read().unwrap_or_default()
}

fn inside(root: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    points.filter_map(|point| Some(Path::new("/").join(point.strip_prefix(root).ok()?))).filter(|point| point != Path::new("/")).collect()
}

/// A path as the kernel writes it in its tables: blanks and backslashes as three octal digits.
fn unescaped(text: &str) -> PathBuf {
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
    fn mounts_of_a_container() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     30 22 254:0 /x /b/rootfs rw - ext4 /dev/vda rw\n\
                     31 30 254:0 /y /b/rootfs/opt/my\\040driver\\134x ro - ext4 /dev/vda rw\n\
                     32 30 254:0 /z /b/rootfs2/opt rw - ext4 /dev/vda rw\n";
        assert_eq!(inside(Path::new("/b/rootfs"), table), [PathBuf::from("/opt/my driver\\x")]);
        assert_eq!(inside(Path::new("/"), table).len(), 3);
    }

    #[test]
    fn versions_of_a_library() {
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
