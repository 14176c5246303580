//! What is on the host: mounts, files, cgroups and processes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vgpu_e2e::process;

/// Depth of the folders below `/sys/fs/cgroup` that are searched: a controller, its groups, and those of an engine in it.
const CGROUP_DEPTH: usize = 4;

/// Returns the mount points at and below a folder, with their file systems.
pub fn mounts(folder: &Path) -> Vec<(PathBuf, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| {
        let point = PathBuf::from(line.split(' ').nth(4)?);
        Some((point, line.split(" - ").nth(1)?.split(' ').next()?.to_owned()))
    });
    mounts.filter(|(point, _)| point.starts_with(folder)).collect()
}

/// Returns the number of all mounts of this namespace.
pub fn all_mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().count()
}

/// Returns the files and folders below a folder, with what each takes, in bytes.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(about) = entry.metadata() else { continue };
        found.insert(entry.path(), about.blocks() * 512);
        if about.is_dir() {
            found.append(&mut files(&entry.path()));
        }
    }
    found
}

/// Returns the cgroups whose names contain this text.
pub fn cgroups(name: &str) -> Vec<PathBuf> {
    fn search(folder: &Path, name: &str, depth: usize, found: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name().to_string_lossy().contains(name) {
                found.push(entry.path());
            }
            if depth > 1 {
                search(&entry.path(), name, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), name, CGROUP_DEPTH, &mut found);
    found
}

/// Returns the processes that are in cgroups whose paths contain this text.
pub fn in_cgroups_of(name: &str) -> Vec<u32> {
    let is_in = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(name));
    process::all().into_iter().filter(is_in).collect()
}

/// Returns the number of zombies on the whole machine.
pub fn zombies() -> usize {
    process::all().into_iter().filter(|pid| process::is_zombie(*pid)).count()
}
