//! A daemon that ends with its test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// How often a daemon is asked whether it is up, a tenth of a second apart. Only a daemon that hangs takes that long.
const MAX_POLLS: u32 = 600;

/// A running daemon. What it mounted below its folder goes with it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    folder: PathBuf,
    /// Held while it runs; let go of when it has ended.
    lock: Option<File>,
}

impl Daemon {
    /// Starts it, and returns when `is_up` succeeds. Panics with its log when it ends before.
    pub fn start(command: &mut Command, folder: &Path, is_up: impl Fn() -> bool) -> Self {
        let log = folder.join("daemon.log");
        let file = File::create(&log).expect("the folder can be written");
        let copy = file.try_clone().expect("a file can be duplicated");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut daemon = Self { child, folder: folder.to_owned(), lock: None };
        for _ in 0..MAX_POLLS {
            if is_up() {
                return daemon;
            }
            if daemon.child.try_wait().expect("our own child").is_some() {
                break;
            }
            sleep(Duration::from_millis(100));
        }
        panic!("{command:?} did not come up:\n{}", std::fs::read_to_string(log).unwrap_or_default());
    }
}

impl Daemon {
    /// As [`Daemon::start`], when no other daemon of this `name` runs on this machine that was started so: it has a socket at a fixed place.
    pub fn start_exclusive(name: &str, command: &mut Command, folder: &Path, is_up: impl Fn() -> bool) -> Self {
        let lock = std::env::temp_dir().join(format!("vgpu-test-{name}.lock"));
        let lock = File::options().create(true).truncate(false).write(true).open(lock).expect("a lock can be made");
        lock.lock().expect("a lock can be waited for");
        let mut daemon = Self::start(command, folder, is_up);
        daemon.lock = Some(lock);
        daemon
    }

    /// Has it read its configuration again.
    pub fn reload(&self) {
        self.signal(libc::SIGHUP);
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: no memory is involved; the process is our child and not yet waited for, so the id is its own.
        unsafe { libc::kill(pid, signal) };
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.signal(libc::SIGTERM);
        let _ = self.child.wait();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|at| Path::new(at).starts_with(&self.folder));
        for at in below.collect::<Vec<_>>().into_iter().rev() {
            let _ = Command::new("umount").args(["-l", at]).status();
        }
    }
}
