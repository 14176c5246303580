//! The capabilities of a running `vgpu monitor`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_KILL and CAP_SYS_PTRACE.
const NEEDED: u64 = 1 << 1 | 1 << 2 | 1 << 5 | 1 << 19;
/// User ID without privileges.
const NOBODY: u32 = 65_534;

/// A running `vgpu monitor` that has dropped its capabilities and serves metrics.
struct Monitor {
    child: Child,
    log: Vec<String>,
    _dir: TempDir,
}

impl Monitor {
    fn start(prepare: impl FnOnce(&mut Command, &Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Other users may be unable to reach the build directory.
        let program = dir.path().join("vgpu");
        fs::copy(env!("CARGO_BIN_EXE_vgpu"), &program).unwrap();
        let mut command = Command::new(program);
        command.args(["monitor", "--listen", "127.0.0.1:0", "--log-level", "debug"]);
        let policy = dir.path().join("config.toml");
        fs::write(&policy, format!("state_dir = {:?}\n", dir.path().join("state"))).unwrap();
        command.env("VGPU_CONFIG", policy).stdin(Stdio::null()).stderr(Stdio::piped());
        prepare(&mut command, dir.path());
        let mut child = command.spawn().unwrap();
        let mut log = Vec::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
            let is_serving = line.contains("serving metrics");
            log.push(line);
            if is_serving {
                return Self { child, log, _dir: dir };
            }
        }
        panic!("{:?} {log:#?}", child.wait())
    }

    /// Returns a set of capabilities of every thread, such as `CapEff`.
    fn capabilities(&self, set: &str) -> Vec<u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let statuses = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        let parse = |status: String| {
            let line = status.lines().find_map(|line| line.strip_prefix(&format!("{set}:"))).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        statuses.map(parse).collect()
    }

    fn warnings(&self) -> Vec<&String> {
        self.log.iter().filter(|line| line.contains("capabilities") && !line.contains("DEBUG")).collect()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn own(set: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{set}:"))).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn root_keeps_only_the_needed_capabilities() {
    if !rustix::process::geteuid().is_root() || own("CapEff") & 1 << 8 == 0 {
        return eprintln!("SKIPPED: expected root with CAP_SETPCAP");
    }
    let monitor = Monitor::start(|_, _| ());
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let expected = NEEDED & own(set);
        assert!(monitor.capabilities(set).iter().all(|&found| found == expected), "{set}: {:x?}", monitor.capabilities(set));
    }
    for set in ["CapInh", "CapAmb"] {
        assert!(monitor.capabilities(set).iter().all(|&found| found == 0), "{set}: {:x?}", monitor.capabilities(set));
    }
    assert_eq!(monitor.warnings(), Vec::<&String>::new());
    assert!(monitor.log.iter().any(|line| line.contains("CAP_KILL") && line.contains("CAP_SYS_PTRACE")), "{:#?}", monitor.log);
}

#[test]
fn other_users_run_without_capabilities() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: expected root, to become another user");
    }
    let monitor = Monitor::start(|command, dir| {
        rustix::fs::chown(dir, Some(rustix::fs::Uid::from_raw(NOBODY)), None).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    });
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert!(monitor.capabilities(set).iter().all(|&found| found == 0), "{set}: {:x?}", monitor.capabilities(set));
    }
    assert_eq!(monitor.warnings(), Vec::<&String>::new());
}
