//! Finds, creates and maps the state file.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::config::Config;
use crate::identity::{self, ProcessIdentity};
use crate::layout::{MAGIC, MAX_GPUS, State};

/// Simulated GPUs of a machine, mapped into this process.
pub struct Device {
    path: PathBuf,
    inode: (u64, u64),
    fd: AtomicI32,
    /// Identity of this process when it opened the file; a forked child has another.
    identity: ProcessIdentity,
    pub(crate) state: &'static State,
}

/// Returns the path of the state file: `SIMGPU_STATE`, else `/dev/simgpu` if it exists, else `/dev/shm/simgpu`.
#[must_use]
pub fn default_path() -> PathBuf {
    if let Some(path) = std::env::var_os("SIMGPU_STATE") {
        return path.into();
    }
    let device = Path::new("/dev/simgpu");
    if device.exists() { device.to_owned() } else { PathBuf::from("/dev/shm/simgpu") }
}

impl Device {
    /// Opens the machine at `path`. Creates one with the default configuration if there is none.
    ///
    /// # Errors
    /// The file cannot be opened, created or mapped, or is not a state file.
    pub fn open(path: &Path) -> io::Result<Device> {
        let file = match open_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match Device::create(path, &Config::default()) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
                open_file(path)?
            }
            other => other?,
        };
        let metadata = file.metadata()?;
        let state = map_state(&file)?;
        if state.magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a simulated GPU of this version", path.display())));
        }
        // Never closed: closing any descriptor of the file would drop the POSIX locks of this process on it.
        let fd = AtomicI32::new(file.into_raw_fd());
        let inode = (metadata.dev(), metadata.ino());
        Ok(Device { path: path.to_owned(), inode, fd, identity: identity::current_process(), state })
    }

    /// Creates a machine. The file gets its name when it is complete.
    ///
    /// # Errors
    /// `AlreadyExists` if there is one, `InvalidInput` for an inconsistent configuration, else the error of the file system.
    pub fn create(path: &Path, config: &Config) -> io::Result<()> {
        if config.gpus == 0 || config.gpus > MAX_GPUS as u64 || config.reserved_bytes + config.baseline_bytes > config.total_bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "inconsistent configuration: expected 1 to 8 GPUs and reserved + baseline <= total",
            ));
        }
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&temporary)?;
        let made = (|| {
            file.set_permissions(Permissions::from_mode(0o666))?;
            file.set_len(size_of::<State>() as u64)?;
            let state = map_state(&file)?;
            // SAFETY: the file has no name yet, so no other process reads the configuration while it is written.
            unsafe { (&raw const state.config).cast_mut().write(*config) };
            state.mutex.init();
            for gpu in &state.gpus {
                gpu.scheduler.init();
            }
            state.magic.store(MAGIC, Ordering::Release);
            std::fs::hard_link(&temporary, path)
        })();
        std::fs::remove_file(&temporary)?;
        made
    }

    /// Returns the properties of the machine.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.state.config
    }

    /// Returns the number of GPUs.
    #[must_use]
    pub fn gpus(&self) -> usize {
        usize::try_from(self.state.config.gpus).unwrap_or(0).min(MAX_GPUS)
    }

    /// Counts one NVML call.
    pub fn count_nvml_call(&self) {
        self.state.nvml_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of NVML calls on this machine since its state was created or reset.
    #[must_use]
    pub fn nvml_calls(&self) -> u64 {
        self.state.nvml_calls.load(Ordering::Relaxed)
    }

    /// Returns the identity of this process, also after a fork.
    pub(crate) fn own_identity(&self) -> ProcessIdentity {
        if self.identity.pid == std::process::id() { self.identity } else { identity::current_process() }
    }

    /// Returns a descriptor of the state file: the one from opening, or a new one if the program closed that.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        let fd = self.fd.load(Ordering::Relaxed);
        if self.is_state_file(fd) {
            return Some(fd);
        }
        let file = open_file(&self.path).ok()?;
        if !self.is_state_file(file.as_raw_fd()) {
            return None;
        }
        let fd = file.into_raw_fd();
        self.fd.store(fd, Ordering::Relaxed);
        Some(fd)
    }

    fn is_state_file(&self, fd: RawFd) -> bool {
        // SAFETY: fstat writes into a struct that lives through the call, and all-zero is a valid stat.
        unsafe {
            let mut stat = std::mem::zeroed::<libc::stat>();
            libc::fstat(fd, &raw mut stat) == 0 && (stat.st_dev, stat.st_ino) == self.inode
        }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // The standard library opens with O_CLOEXEC. Closing a duplicate here would drop the POSIX locks of the process.
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)
}

fn map_state(file: &File) -> io::Result<&'static State> {
    let size = size_of::<State>();
    if file.metadata()?.len() < size as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too short for a simulated GPU"));
    }
    // SAFETY: a new shared mapping of a file that is long enough; it is never unmapped.
    let address =
        unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is as long as `State` and page-aligned; every bit pattern is a valid `State`.
    Ok(unsafe { &*address.cast::<State>() })
}
