//! Checks of the kernel, its cgroups, and the file system of the state directory.

use super::machine::{Machine, version_numbers};
use super::report::Report;
use std::path::Path;

/// First version with openat2(2), without which mounts into a hostile image are not safe.
const MIN_KERNEL: [u32; 2] = [5, 6];

/// Checks the kernel's version.
pub(super) fn check_kernel(machine: &Machine, report: &mut Report) {
    let release = machine.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    if release.is_empty() {
        return report.warn("kernel", "unknown version", "mount /proc");
    }
    if version_numbers(release).as_slice() >= MIN_KERNEL.as_slice() {
        report.ok("kernel", release);
    } else {
        report.fail("kernel", format!("{release}: expected 5.6 or later"), "upgrade to Linux 5.6 or later");
    }
}

/// Checks that cgroups are mounted.
pub(super) fn check_cgroups(machine: &Machine, report: &mut Report) {
    let mounts = mounts(machine);
    let kind = |wanted: &str| mounts.iter().filter(|m| m.kind == wanted).map(|m| m.at.as_str()).collect::<Vec<_>>();
    let message = match (kind("cgroup2").as_slice(), kind("cgroup").is_empty()) {
        ([.., "/sys/fs/cgroup"], _) => "version 2",
        ([], true) => {
            return report.fail("cgroups", "no cgroup file system is mounted", "mount cgroup2 at /sys/fs/cgroup");
        }
        ([], false) => "version 1",
        _ => "versions 1 and 2 (hybrid)",
    };
    report.ok("cgroups", message);
}

/// Checks the file system of the state directory.
///
/// It holds the regions, which every process of a container maps and which must not outlive a reboot.
pub(super) fn check_state_dir(machine: &Machine, folder: &Path, report: &mut Report) {
    const STATE: &str = "state";
    let mounts = mounts(machine);
    let Some(mount) = mounts.iter().filter(|m| folder.starts_with(&m.at)).max_by_key(|m| m.at.len()) else {
        return report.note(STATE, format!("{}: no mount found", folder.display()));
    };
    let message = format!("{} is on {}", folder.display(), mount.kind);
    match mount.kind.as_str() {
        _ if mount.options.iter().any(|option| option == "ro") => {
            report.fail(STATE, format!("{message}, read-only"), "set state_dir in the policy file to a writable folder");
        }
        "tmpfs" => report.ok(STATE, message),
        "nfs" | "nfs4" | "cifs" | "fuse" | "9p" | "ceph" => {
            report.fail(STATE, format!("{message}: expected a local file system"), "set state_dir in the policy file to a folder on tmpfs");
        }
        _ => report.warn(
            STATE,
            format!("{message}: expected tmpfs, which is faster and emptied by a reboot"),
            "set state_dir to a folder on tmpfs, such as /run",
        ),
    }
}

/// Line of /proc/self/mounts.
pub(super) struct Mount {
    /// Mount point.
    pub at: String,
    /// Type of the file system.
    pub kind: String,
    /// Options, such as `ro` and `noexec`.
    pub options: Vec<String>,
}

/// Lists the mounts in the order in which they were made.
pub(super) fn mounts(machine: &Machine) -> Vec<Mount> {
    let text = machine.read("/proc/self/mounts").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
            // The kernel escapes a space as \040.
            let at = at.replace("\\040", " ");
            Some(Mount { at, kind: kind.into(), options: options.split(',').map(str::to_owned).collect() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report::State;
    use std::fs;

    fn machine(release: &str, mounts: &str) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/sys/kernel")).unwrap();
        fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        fs::write(dir.path().join("proc/sys/kernel/osrelease"), release).unwrap();
        fs::write(dir.path().join("proc/self/mounts"), mounts).unwrap();
        let machine = Machine::at(dir.path());
        (dir, machine)
    }

    #[test]
    fn kernel_versions() {
        for (release, expected) in [
            ("6.1.0-18-amd64\n", State::Ok),
            ("5.6.0\n", State::Ok),
            ("5.10.0\n", State::Ok),
            ("5.4.0-150-generic\n", State::Fail),
            ("4.18.0-553.el8\n", State::Fail),
            ("", State::Warn),
        ] {
            let (_dir, machine) = machine(release, "");
            let mut report = Report::default();
            check_kernel(&machine, &mut report);
            assert_eq!(report.0[0].state, expected, "{release}");
        }
    }

    #[test]
    fn cgroup_versions() {
        for (mounts, expected) in [
            ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "version 2"),
            ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", "versions 1 and 2 (hybrid)"),
            ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", "version 1"),
            ("", "no cgroup file system is mounted"),
        ] {
            let (_dir, machine) = machine("6.1", mounts);
            let mut report = Report::default();
            check_cgroups(&machine, &mut report);
            assert_eq!(report.0[0].message, expected);
        }
    }

    #[test]
    fn state_belongs_on_a_local_tmpfs() {
        for (mounts, expected) in [
            ("/dev/sda / ext4 rw 0 0\ntmpfs /run tmpfs rw,nosuid 0 0\ntmpfs /run/lock tmpfs ro 0 0\n", State::Ok),
            ("/dev/sda / ext4 rw 0 0\n", State::Warn),
            ("/dev/sda / ext4 ro 0 0\n", State::Fail),
            ("host:/x / nfs4 rw 0 0\n", State::Fail),
        ] {
            let (_dir, machine) = machine("6.1", mounts);
            let mut report = Report::default();
            check_state_dir(&machine, Path::new("/run/vgpu"), &mut report);
            assert_eq!(report.0[0].state, expected, "{mounts}");
        }
    }
}
