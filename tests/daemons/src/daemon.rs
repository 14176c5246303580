//! Daemon process that ends with its test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Maximum number of readiness checks, 100 ms apart.
const MAX_POLLS: u32 = 600;

/// Running daemon. On drop it is stopped and its mounts below its folder are removed.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    folder: PathBuf,
    /// Lock file held until the daemon has ended.
    lock: Option<File>,
}

impl Daemon {
    /// Starts the daemon and waits until `is_up` succeeds.
    ///
    /// # Panics
    /// The daemon ends or is not up within 60 s; the message contains its log.
    pub fn start(command: &mut Command, folder: &Path, is_up: impl Fn() -> bool) -> Self {
        let log = folder.join("daemon.log");
        let file = File::create(&log).expect("the folder is writable");
        let copy = file.try_clone().expect("a file can be duplicated");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut daemon = Self { child, folder: folder.to_owned(), lock: None };
        for _ in 0..MAX_POLLS {
            if is_up() {
                return daemon;
            }
            if daemon.child.try_wait().expect("the child can be waited for").is_some() {
                break;
            }
            sleep(Duration::from_millis(100));
        }
        panic!("{command:?} did not start:\n{}", std::fs::read_to_string(log).unwrap_or_default());
    }
}

impl Daemon {
    /// Starts the daemon as [`Daemon::start`] does, after all other daemons of this `name` that were started this way have ended. For
    /// daemons with a socket at a fixed path.
    pub fn start_exclusive(name: &str, command: &mut Command, folder: &Path, is_up: impl Fn() -> bool) -> Self {
        let lock = std::env::temp_dir().join(format!("vgpu-test-{name}.lock"));
        let lock = File::options().create(true).truncate(false).write(true).open(lock).expect("the lock file can be created");
        lock.lock().expect("the file can be locked");
        let mut daemon = Self::start(command, folder, is_up);
        daemon.lock = Some(lock);
        daemon
    }

    /// Makes the daemon reload its configuration.
    pub fn reload(&self) {
        self.signal(libc::SIGHUP);
    }

    /// Kills the daemon, which cannot prepare for that.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("the PID fits i32");
        // SAFETY: no memory is involved; the child was not waited for, so its PID is not reused.
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
