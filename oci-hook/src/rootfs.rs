//! The container's root file system, accessed from outside. Nothing in it is trusted: every step of a path is opened relative to the
//! directory before it, and never through a symbolic link.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// An open root file system.
#[derive(Debug)]
pub struct Rootfs {
    root: OwnedFd,
    path: PathBuf,
}

const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Rootfs {
    /// Opens the root file system at this path on the host.
    ///
    /// # Errors
    /// The directory does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        let root = openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(Error::io("open the container's root file system", path))?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Opens the absolute container path `inside` without following symbolic links. `None` if it does not exist.
    ///
    /// # Errors
    /// A step of the path is a symbolic link, or is not a directory though the path continues.
    pub fn find(&self, inside: &str) -> Result<Option<OwnedFd>> {
        // All steps at once if possible; on failure one by one, to name the step in the error.
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.root, inside.trim_start_matches('/'), STEP, Mode::empty(), resolve) {
            Ok(found) if self.kind(&found, Path::new(inside))? != FileType::Symlink => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            _ => self.find_stepwise(inside),
        }
    }

    fn find_stepwise(&self, inside: &str) -> Result<Option<OwnedFd>> {
        let mut at = self.try_clone()?;
        let mut steps = Path::new(inside.trim_start_matches('/')).components().peekable();
        let mut so_far = PathBuf::from("/");
        while let Some(step) = steps.next() {
            so_far.push(step);
            at = match openat(&at, step.as_os_str(), STEP, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok(None),
                Err(why) => return Err(self.failed("open", &so_far)(why)),
            };
            let kind = self.kind(&at, &so_far)?;
            if kind == FileType::Symlink {
                return Err(Error::Image {
                    path: so_far,
                    found: "a symbolic link",
                    expected: "a directory or file, as a link may lead out of the image",
                });
            }
            if steps.peek().is_some() && kind != FileType::Directory {
                return Err(Error::Image { path: so_far, found: "not a directory", expected: "a directory, or nothing" });
            }
        }
        Ok(Some(at))
    }

    /// Opens a path as [`Rootfs::find`] does, if it is a regular file.
    ///
    /// # Errors
    /// As [`Rootfs::find`], or the path exists and is not a regular file.
    pub fn find_file(&self, inside: &str) -> Result<Option<OwnedFd>> {
        self.find_kind(inside, false)
    }

    /// Opens a path as [`Rootfs::find`] does, if it is a directory (`is_dir`) or a regular file.
    ///
    /// # Errors
    /// As [`Rootfs::find`], or the path exists and is of another kind.
    pub fn find_kind(&self, inside: &str, is_dir: bool) -> Result<Option<OwnedFd>> {
        let Some(found) = self.find(inside)? else { return Ok(None) };
        match (self.kind(&found, Path::new(inside))?, is_dir) {
            (FileType::Directory, true) | (FileType::RegularFile, false) => Ok(Some(found)),
            (_, true) => Err(Error::Image { path: inside.into(), found: "not a directory", expected: "a directory, or nothing" }),
            (_, false) => Err(Error::Image { path: inside.into(), found: "not a regular file", expected: "a regular file, or nothing" }),
        }
    }

    /// Creates an empty directory (`is_dir`) or file at `inside` with its parent directories, and opens it. An existing one is kept.
    ///
    /// # Errors
    /// As [`Rootfs::find_kind`], or the file system refuses.
    pub fn create(&self, inside: &str, is_dir: bool) -> Result<OwnedFd> {
        if is_dir { self.create_dirs(inside) } else { self.create_file(inside) }
    }

    /// Reads a file in the container of at most `max_bytes`. `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Rootfs::find_file`], or the file is longer or not UTF-8.
    pub fn read(&self, inside: &str, max_bytes: usize) -> Result<Option<String>> {
        let Some(found) = self.find_file(inside)? else { return Ok(None) };
        let file = reopen(&found).map_err(self.failed("read", Path::new(inside)))?;
        read_text(file, max_bytes).map_err(|why| self.failed("read", Path::new(inside))(why)).map(Some)
    }

    /// Creates an empty file at `inside` with its parent directories, and opens it. An existing file is kept.
    ///
    /// # Errors
    /// As [`Rootfs::find_file`], or the file system refuses.
    pub fn create_file(&self, inside: &str) -> Result<OwnedFd> {
        let path = Path::new(inside);
        let (Some(parent), Some(name)) = (path.parent().and_then(Path::to_str), path.file_name()) else {
            return Err(self.failed("create", path)(Errno::INVAL));
        };
        let parent = self.create_dirs(parent)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&parent, name, flags, Mode::from_raw_mode(0o644)) {
            Ok(_) | Err(Errno::EXIST) => {}
            Err(why) => return Err(self.failed("create", path)(why)),
        }
        self.find_file(inside)?.ok_or_else(|| self.failed("open", path)(Errno::NOENT))
    }

    fn create_dirs(&self, inside: &str) -> Result<OwnedFd> {
        let mut at = self.try_clone()?;
        let mut so_far = PathBuf::from("/");
        for step in Path::new(inside.trim_start_matches('/')).components() {
            so_far.push(step);
            match mkdirat(&at, step.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(why) => return Err(self.failed("create", &so_far)(why)),
            }
            let flags = STEP | OFlags::DIRECTORY;
            at = match openat(&at, step.as_os_str(), flags, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    return Err(Error::Image {
                        path: so_far,
                        found: "a symbolic link, or not a directory",
                        expected: "a directory, or nothing",
                    });
                }
                Err(why) => return Err(self.failed("open", &so_far)(why)),
            };
        }
        Ok(at)
    }

    /// Duplicates the descriptor of the root.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn try_clone(&self) -> Result<OwnedFd> {
        self.root.try_clone().map_err(Error::io("open", &self.path))
    }

    fn kind(&self, of: &OwnedFd, inside: &Path) -> Result<FileType> {
        let found = fstat(of).map_err(self.failed("stat", inside))?;
        Ok(FileType::from_raw_mode(found.st_mode))
    }

    fn failed<E: Into<std::io::Error>>(&self, action: &'static str, inside: &Path) -> impl FnOnce(E) -> Error + use<E> {
        Error::io(action, &self.path.join(inside.strip_prefix("/").unwrap_or(inside)))
    }
}

/// Opens a regular file of the host for reading, which the container's user may have put there. Nothing else is opened: a pipe would hang,
/// and the mere opening of a device has effects.
///
/// # Errors
/// The file does not exist, or is not a regular one.
pub fn open_regular(path: &Path) -> std::io::Result<File> {
    let found = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(std::io::Error::other("not a regular file"));
    }
    Ok(reopen(&found)?)
}

/// Opens for reading what a descriptor of `O_PATH` refers to: through itself, not by its name. It does not wait for a lease.
fn reopen(found: &OwnedFd) -> rustix::io::Result<File> {
    openat(CWD, fd_path(found), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// Reads a whole file of at most `max_bytes`.
///
/// # Errors
/// The file is longer, is not UTF-8, or cannot be read.
pub fn read_text(file: impl Read, max_bytes: usize) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(max_bytes as u64 + 1).read_to_string(&mut text)?;
    if text.len() > max_bytes {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("longer than {max_bytes} bytes")));
    }
    Ok(text)
}

/// Returns the path by which the kernel finds an open descriptor without resolving any other path.
pub(crate) fn fd_path(of: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", of.as_raw_fd())
}

#[cfg(test)]
mod tests;
