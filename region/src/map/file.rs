//! Open files: opening, mapping and locking them.

use core::ffi::CStr;
use core::ptr::NonNull;

use crate::region::SLOTS;
use crate::{limits, region};

/// Flag for every open of the two files: fail at once if a process holds a lease on the file. The container's root owns the files if the
/// container has no user namespace, so it may take leases, and an open without the flag waits for up to `/proc/sys/fs/lease-break-time`.
pub const WITHOUT_WAITING: i32 = libc::O_NONBLOCK;

/// Error of a file that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A system call failed with this errno.
    System {
        /// Name of the call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
    /// A process holds a lease on the file (`F_SETLEASE`), for which an open would have to wait.
    Leased,
    /// The file is not a limits page of this version.
    Limits(limits::Invalid),
    /// The file is not a region of this version.
    Region(region::Invalid),
    /// The file is too short. Its size in bytes.
    Short(u64),
    /// All slots belong to living processes.
    NoSlot,
    /// All accounts are taken by other GPUs, or another process has been adding one for a second.
    NoAccount,
}

impl core::fmt::Display for Error {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::System { call, errno } => write!(out, "{call} failed with errno {errno}"),
            Self::Leased => out.write_str("a process holds a lease on the file"),
            Self::Limits(limits::Invalid::Version(found)) => write!(out, "layout version {found}, expected {}", limits::VERSION),
            Self::Region(region::Invalid::Version(found)) => write!(out, "layout version {found}, expected {}", region::VERSION),
            Self::Limits(_) | Self::Region(_) => out.write_str("not a file of vgpu's"),
            Self::Short(size) => write!(out, "only {size} bytes long"),
            Self::NoAccount => out.write_str("no account can be made for a GPU"),
            Self::NoSlot => write!(out, "all {SLOTS} process slots are in use"),
        }
    }
}

/// Returns the error of a failed system call.
pub(super) fn failed(call: &'static str) -> Error {
    // SAFETY: errno's address is valid for the calling thread.
    Error::System { call, errno: unsafe { *libc::__errno_location() } }
}

/// An open descriptor. Closed on drop.
#[derive(Debug)]
pub(super) struct File(pub(super) i32);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is owned by this value and not used after this.
        unsafe { libc::close(self.0) };
    }
}

impl File {
    /// Opens a file, and never waits for a process that holds a lease on it.
    pub(super) fn open(path: &CStr, flags: i32) -> Result<Self, Error> {
        // SAFETY: the path is a C string.
        match unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC | WITHOUT_WAITING) } {
            -1 => match failed("open") {
                Error::System { errno: libc::EWOULDBLOCK, .. } => Err(Error::Leased),
                other => Err(other),
            },
            descriptor => Ok(Self(descriptor)),
        }
    }

    /// Returns another descriptor of an open file.
    pub(super) fn duplicate(descriptor: i32) -> Result<Self, Error> {
        // SAFETY: the call takes no pointers, and fails if nothing is open with this number.
        match unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) } {
            -1 => Err(failed("fcntl")),
            duplicate => Ok(Self(duplicate)),
        }
    }

    /// Allocates the pages of a range of the file. Without them, a write through a mapping kills the process with SIGBUS once the file
    /// system is full. The file's size stays. Does nothing on file systems that cannot allocate in advance.
    pub(super) fn allocate(&self, offset: u64, length: usize) -> Result<(), Error> {
        // SAFETY: the call takes no pointers.
        if unsafe { libc::fallocate(self.0, libc::FALLOC_FL_KEEP_SIZE, offset as _, length as _) } == 0 {
            return Ok(());
        }
        match failed("fallocate") {
            Error::System { errno: libc::EOPNOTSUPP | libc::ENOSYS, .. } => Ok(()),
            other => Err(other),
        }
    }

    pub(super) fn size(&self) -> Result<u64, Error> {
        // SAFETY: fstat fills the structure it is given; an all-zero stat is valid.
        unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            if libc::fstat(self.0, &raw mut stat) != 0 { Err(failed("fstat")) } else { Ok(stat.st_size as u64) }
        }
    }

    pub(super) fn map<T>(&self, protection: i32) -> Result<NonNull<T>, Error> {
        let size = self.size()?;
        if size < size_of::<T>() as u64 {
            return Err(Error::Short(size));
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice, as long as the file is at least.
        let address = unsafe { libc::mmap(core::ptr::null_mut(), size_of::<T>(), protection, libc::MAP_SHARED, self.0, 0) };
        if address == libc::MAP_FAILED {
            return Err(failed("mmap"));
        }
        NonNull::new(address.cast()).ok_or(Error::Short(size))
    }

    /// Queries or sets the write lock on a slot's byte. Returns `None` if the kernel refused the command, as for a lock of another process.
    pub(super) fn lock(&self, command: i32, slot: usize) -> Option<libc::flock> {
        self.change_lock(command, libc::F_WRLCK, slot)
    }

    pub(super) fn change_lock(&self, command: i32, kind: i32, slot: usize) -> Option<libc::flock> {
        // SAFETY: an all-zero flock is valid; the kernel reads and writes only this structure.
        unsafe {
            let mut lock: libc::flock = core::mem::zeroed();
            lock.l_type = kind as _;
            lock.l_whence = libc::SEEK_SET as _;
            lock.l_start = slot as _;
            lock.l_len = 1;
            (libc::fcntl(self.0, command, &raw mut lock) == 0).then_some(lock)
        }
    }
}
