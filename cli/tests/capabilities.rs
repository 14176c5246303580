//! The users and capabilities of the processes of a running `vgpu monitor`.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use common::{children, wait_for};
use tempfile::TempDir;

/// Bits of the capabilities.
const DAC_OVERRIDE: u64 = 1 << 1;
const KILL: u64 = 1 << 5;
const SETGID: u64 = 1 << 6;
const SETUID: u64 = 1 << 7;
const SYS_PTRACE: u64 = 1 << 19;
/// What each process of the monitor may do.
const PARTS: [(&str, u64); 4] =
    [("enforce", KILL | SYS_PTRACE), ("arbiter", DAC_OVERRIDE), ("http", 0), ("files", KILL | SYS_PTRACE | SETUID | SETGID)];
/// What they may do together.
const ALL: u64 = DAC_OVERRIDE | KILL | SETGID | SETUID | SYS_PTRACE;
/// User ID without privileges.
const NOBODY: u32 = 65_534;

/// A running `vgpu monitor` that has dropped its capabilities and serves metrics.
struct Monitor {
    child: Child,
    address: String,
    log: Arc<Mutex<Vec<String>>>,
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
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        while let Some(line) = lines.next() {
            let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).map(str::to_owned);
            log.push(line);
            if let Some(address) = address {
                let log = Arc::new(Mutex::new(log));
                let kept = Arc::clone(&log);
                std::thread::spawn(move || lines.for_each(|line| kept.lock().unwrap().push(line)));
                return Self { child, address, log, _dir: dir };
            }
        }
        panic!("{:?} {log:#?}", child.wait())
    }

    /// Waits until all parts run and have given up what they do not need. Returns their PIDs.
    fn parts(&self) -> BTreeMap<String, u32> {
        wait_for("all parts run", || {
            let found: BTreeMap<String, u32> = children(self.child.id())
                .into_iter()
                .filter_map(|(pid, name)| Some((name.strip_prefix("vgpu-")?.to_owned(), pid)))
                .collect();
            let has_restricted =
                |pid: &u32| fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| text.contains("NoNewPrivs:\t1"));
            (found.len() == PARTS.len() && found.values().all(has_restricted) && self.answers()).then_some(found)
        })
    }

    /// Returns whether `/healthz` says that all parts go on.
    fn answers(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(&self.address).ok()?;
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
            let mut response = String::new();
            stream.read_to_string(&mut response).ok()?;
            Some(response)
        };
        ask().is_some_and(|response| response.starts_with("HTTP/1.1 200"))
    }

    fn warnings(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        log.iter()
            .filter(|line| ["capabilit", "privileges", "nobody"].iter().any(|word| line.contains(word)) && !line.contains("DEBUG"))
            .cloned()
            .collect()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a field of a process, such as `CapEff`, of every thread.
fn fields(pid: u32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    statuses.map(|status| status.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap().trim().to_owned()).collect()
}

/// Returns a set of capabilities of every thread of a process.
fn capabilities(pid: u32, set: &str) -> Vec<u64> {
    fields(pid, set).iter().map(|text| u64::from_str_radix(text, 16).unwrap()).collect()
}

/// Returns a set of capabilities of this process.
fn own(set: &str) -> u64 {
    capabilities(std::process::id(), set)[0]
}

#[test]
fn each_part_keeps_only_the_capabilities_that_it_needs() {
    if !rustix::process::geteuid().is_root() || own("CapEff") & 1 << 8 == 0 {
        return eprintln!("SKIPPED: expected root with CAP_SETPCAP");
    }
    let monitor = Monitor::start(|_, _| ());
    let parts = monitor.parts();
    let supervisor = monitor.child.id();
    for (pid, set, expected) in [(supervisor, "CapEff", KILL), (supervisor, "CapPrm", ALL), (supervisor, "CapBnd", ALL)] {
        assert!(capabilities(pid, set).iter().all(|&found| found == expected & own(set)), "{set}: {:x?}", capabilities(pid, set));
    }
    for (part, expected) in PARTS {
        let pid = parts[part];
        for set in ["CapEff", "CapPrm"] {
            let found = capabilities(pid, set);
            assert!(found.iter().all(|&found| found == expected & own(set)), "{part} {set}: {found:x?}");
        }
        assert!(capabilities(pid, "CapBnd").iter().all(|&found| found == ALL & own("CapBnd")), "{part}");
        for set in ["CapInh", "CapAmb"] {
            assert!(capabilities(pid, set).iter().all(|&found| found == 0), "{part} {set}");
        }
        assert!(fields(pid, "NoNewPrivs").iter().all(|found| found == "1"), "{part}");
        let user = if part == "http" { NOBODY } else { 0 };
        for field in ["Uid", "Gid"] {
            assert!(
                fields(pid, field).iter().all(|found| *found == std::iter::repeat_n(user.to_string(), 4).collect::<Vec<_>>().join("\t")),
                "{part} {field}"
            );
        }
    }
    assert_eq!(fields(parts["http"], "Groups"), [""]);
    assert_eq!(monitor.warnings(), Vec::<String>::new());
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
    for pid in monitor.parts().into_values().chain([monitor.child.id()]) {
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert!(capabilities(pid, set).iter().all(|&found| found == 0), "{set}: {:x?}", capabilities(pid, set));
        }
    }
    assert_eq!(monitor.warnings(), Vec::<String>::new());
}
