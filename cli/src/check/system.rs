//! The kernel, its cgroups, and the file system under our state.

use super::machine::{Machine, leading};
use super::report::Report;
use std::path::Path;

/// openat2(2) came with 5.6; without it nothing can be mounted into a hostile image safely.
const KERNEL: [u32; 2] = [5, 6];

pub(super) fn kernel(machine: &Machine, report: &mut Report) {
    let release = machine.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    if release.is_empty() {
        return report.warn("kernel", "of unknown version", "mount /proc");
    }
    if leading(release).as_slice() >= KERNEL.as_slice() {
        report.ok("kernel", release);
    } else {
        report.fail("kernel", format!("{release} is too old"), "use Linux 5.6 or later");
    }
}

pub(super) fn cgroups(machine: &Machine, report: &mut Report) {
    let mounts = mounts(machine);
    let kind = |wanted: &str| mounts.iter().filter(|m| m.kind == wanted).map(|m| m.at.as_str()).collect::<Vec<_>>();
    let says = match (kind("cgroup2").as_slice(), kind("cgroup").is_empty()) {
        ([.., "/sys/fs/cgroup"], _) => "version 2",
        ([], true) => {
            return report.fail("cgroups", "none are mounted", "mount cgroup2 at /sys/fs/cgroup");
        }
        ([], false) => "version 1",
        _ => "version 1 with version 2 beside it (hybrid)",
    };
    report.ok("cgroups", says);
}

/// The regions live here: mapped by every process of a container, and gone with the machine.
pub(super) fn state(machine: &Machine, folder: &Path, report: &mut Report) {
    const STATE: &str = "state";
    let mounts = mounts(machine);
    let Some(mount) = mounts.iter().filter(|m| folder.starts_with(&m.at)).max_by_key(|m| m.at.len()) else {
        return report.note(STATE, format!("{}: no mount is known", folder.display()));
    };
    let says = format!("{} is on {}", folder.display(), mount.kind);
    match mount.kind.as_str() {
        _ if mount.options.iter().any(|option| option == "ro") => {
            report.fail(STATE, format!("{says}, read-only"), "set state_dir in the policy file to a folder that can be written");
        }
        "tmpfs" => report.ok(STATE, says),
        "nfs" | "nfs4" | "cifs" | "fuse" | "9p" | "ceph" => {
            report.fail(STATE, format!("{says}, which is not local"), "set state_dir in the policy file to a folder on tmpfs");
        }
        _ => {
            report.warn(STATE, format!("{says}, which outlives a restart and is slower"), "set state_dir to a folder on tmpfs, as /run is")
        }
    }
}

/// A line of /proc/self/mounts.
pub(super) struct Mount {
    /// Where it is.
    pub at: String,
    /// The file system's type.
    pub kind: String,
    /// `ro`, `noexec`, ….
    pub options: Vec<String>,
}

/// What is mounted, in order.
pub(super) fn mounts(machine: &Machine) -> Vec<Mount> {
    let text = machine.read("/proc/self/mounts").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
            // The kernel writes a blank as \040.
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
    fn kernels() {
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
            kernel(&machine, &mut report);
            assert_eq!(report.0[0].state, expected, "{release}");
        }
    }

    #[test]
    fn cgroups_of_each_kind() {
        for (mounts, expected) in [
            ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "version 2"),
            (
                "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
                "version 1 with version 2 beside it (hybrid)",
            ),
            ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", "version 1"),
            ("", "none are mounted"),
        ] {
            let (_dir, machine) = machine("6.1", mounts);
            let mut report = Report::default();
            cgroups(&machine, &mut report);
            assert_eq!(report.0[0].says, expected);
        }
    }

    #[test]
    fn the_state_belongs_on_a_local_tmpfs() {
        for (mounts, expected) in [
            ("/dev/sda / ext4 rw 0 0\ntmpfs /run tmpfs rw,nosuid 0 0\ntmpfs /run/lock tmpfs ro 0 0\n", State::Ok),
            ("/dev/sda / ext4 rw 0 0\n", State::Warn),
            ("/dev/sda / ext4 ro 0 0\n", State::Fail),
            ("host:/x / nfs4 rw 0 0\n", State::Fail),
        ] {
            let (_dir, machine) = machine("6.1", mounts);
            let mut report = Report::default();
            state(&machine, Path::new("/run/vgpu"), &mut report);
            assert_eq!(report.0[0].state, expected, "{mounts}");
        }
    }
}
