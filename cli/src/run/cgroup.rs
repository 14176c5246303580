//! A cgroup of the program's own, by which the monitor knows its processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vgpu_oci_hook::process::rootless_user;
use vgpu_oci_hook::record::Program;

/// Hierarchies of version 1 in which a new cgroup needs no settings and changes nothing for its processes.
const CONTROLLERS: [&str; 2] = ["freezer", "pids"];

/// Moves this process into a new cgroup below its own, so that the limits of its own cgroup still apply. Returns the directory; `None`
/// for users other than root, whose programs no monitor sees, and if there can be no cgroup, which is reported on stderr.
pub(super) fn enter(id: &str) -> Option<PathBuf> {
    if rootless_user().is_some() {
        return None;
    }
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let parents = own(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    let mut why = io::Error::other("no cgroup file system of version 2, or of version 1 with freezer or pids, is mounted");
    for parent in parents {
        let dir = parent.join(Program::cgroup_name(id));
        match fs::create_dir(&dir).and_then(|()| fs::write(dir.join("cgroup.procs"), "0")) {
            Ok(()) => return Some(dir),
            Err(error) => {
                let _ = fs::remove_dir(&dir);
                why = io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
            }
        }
    }
    eprintln!("vgpu: no cgroup for the program, so vgpu monitor does not see memory and GPU time that it takes past the library: {why}");
    None
}

/// Returns the directories of a process's cgroups that can have another one for a program, the preferred one first, from its
/// `/proc/PID/cgroup` and `/proc/PID/mountinfo`.
fn own(cgroups: &str, mounts: &str) -> Vec<PathBuf> {
    let hierarchies = ["cgroup2"].into_iter().chain(CONTROLLERS);
    hierarchies.filter_map(|hierarchy| directory(hierarchy, cgroups, mounts)).collect()
}

/// Returns the directory of a process's cgroup in the hierarchy of version 2, or in that of a controller.
fn directory(hierarchy: &str, cgroups: &str, mounts: &str) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|word| word == hierarchy);
    let path = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        (has(controllers) || hierarchy == "cgroup2" && controllers.is_empty()).then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        // 36 35 0:30 ROOT POINT OPTIONS TAGS - TYPE SOURCE SUPER_OPTIONS
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        (kind == hierarchy || kind == "cgroup" && has(options)).then(|| Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroups_are_found() {
        let v2 = own("0::/user.slice/x\n", "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
        assert_eq!(v2, [Path::new("/sys/fs/cgroup/user.slice/x")]);
        let cgroups = "9:name=systemd:/s\n5:pids:/a/b\n4:freezer:/\n3:cpu,cpuacct:/c\n0::/u\n";
        let mounts = "1 2 0:1 / / rw - ext4 /dev/x rw\n\
                      1 2 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      1 2 0:3 /a /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      1 2 0:4 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        let hybrid = own(cgroups, mounts);
        assert_eq!(hybrid, ["/sys/fs/cgroup/unified/u", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/pids/b"].map(Path::new));
        assert!(own(cgroups, "").is_empty());
    }
}
