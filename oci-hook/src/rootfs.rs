//! The container's root file system, seen from outside. Nothing in it is believed: every step of a path goes from the folder before it,
//! and never through a symbolic link.

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
    /// It is not there.
    pub fn open(path: &Path) -> Result<Self> {
        let root = openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(Error::io("open the container's root file system", path))?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Opens what is at the absolute path `inside` the container, following no symbolic link; `None` if it is not there.
    ///
    /// # Errors
    /// A step of the path is a symbolic link, or is no folder though something is to be in it.
    pub fn find(&self, inside: &str) -> Result<Option<OwnedFd>> {
        // All steps at once, where the kernel can and nothing is in the way; else one by one, to tell which.
        let strictly = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.root, inside.trim_start_matches('/'), STEP, Mode::empty(), strictly) {
            Ok(found) if self.kind(&found, Path::new(inside))? != FileType::Symlink => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            _ => self.find_by_step(inside),
        }
    }

    fn find_by_step(&self, inside: &str) -> Result<Option<OwnedFd>> {
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
                    accepted: "no symbolic link, as it could be led elsewhere",
                });
            }
            if steps.peek().is_some() && kind != FileType::Directory {
                return Err(Error::Image { path: so_far, found: "not a folder", accepted: "a folder, or nothing" });
            }
        }
        Ok(Some(at))
    }

    /// Like [`Rootfs::find`], for what has to be a regular file if it is there.
    ///
    /// # Errors
    /// As [`Rootfs::find`], and if it is anything else.
    pub fn find_file(&self, inside: &str) -> Result<Option<OwnedFd>> {
        self.find_kind(inside, false)
    }

    /// Like [`Rootfs::find`], for what has to be a folder or a regular file if it is there.
    ///
    /// # Errors
    /// As [`Rootfs::find`], and if it is anything else.
    pub fn find_kind(&self, inside: &str, folder: bool) -> Result<Option<OwnedFd>> {
        let Some(found) = self.find(inside)? else { return Ok(None) };
        match (self.kind(&found, Path::new(inside))?, folder) {
            (FileType::Directory, true) | (FileType::RegularFile, false) => Ok(Some(found)),
            (_, true) => Err(Error::Image { path: inside.into(), found: "not a folder", accepted: "a folder, or nothing" }),
            (_, false) => Err(Error::Image { path: inside.into(), found: "not a regular file", accepted: "a regular file, or nothing" }),
        }
    }

    /// Makes an empty folder or file at `inside`, with the folders that it needs, and opens it. What is there already stays.
    ///
    /// # Errors
    /// As [`Rootfs::find_kind`], or the file system does not let us.
    pub fn make(&self, inside: &str, folder: bool) -> Result<OwnedFd> {
        if folder { self.make_folders(inside) } else { self.make_file(inside) }
    }

    /// The text of a file in the container of at most `most` bytes; `None` if it is not there.
    ///
    /// # Errors
    /// As [`Rootfs::find_file`], and if it is longer or not text.
    pub fn read(&self, inside: &str, most: usize) -> Result<Option<String>> {
        let Some(found) = self.find_file(inside)? else { return Ok(None) };
        // A descriptor that was opened by path only can be read once it is opened again, through itself and not by its name.
        let again = openat(CWD, fd_path(&found), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = File::from(again.map_err(self.failed("read", Path::new(inside)))?);
        read_text(file, most).map_err(|why| self.failed("read", Path::new(inside))(why)).map(Some)
    }

    /// Makes an empty file at `inside`, with the folders that it needs, and opens it. What is there already stays.
    ///
    /// # Errors
    /// As [`Rootfs::find_file`], or the file system does not let us.
    pub fn make_file(&self, inside: &str) -> Result<OwnedFd> {
        let path = Path::new(inside);
        let (Some(parent), Some(name)) = (path.parent().and_then(Path::to_str), path.file_name()) else {
            return Err(self.failed("make", path)(Errno::INVAL));
        };
        let parent = self.make_folders(parent)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&parent, name, flags, Mode::from_raw_mode(0o644)) {
            Ok(_) | Err(Errno::EXIST) => {}
            Err(why) => return Err(self.failed("make", path)(why)),
        }
        self.find_file(inside)?.ok_or_else(|| self.failed("open", path)(Errno::NOENT))
    }

    fn make_folders(&self, inside: &str) -> Result<OwnedFd> {
        let mut at = self.try_clone()?;
        let mut so_far = PathBuf::from("/");
        for step in Path::new(inside.trim_start_matches('/')).components() {
            so_far.push(step);
            match mkdirat(&at, step.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(why) => return Err(self.failed("make", &so_far)(why)),
            }
            let flags = STEP | OFlags::DIRECTORY;
            at = match openat(&at, step.as_os_str(), flags, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    return Err(Error::Image { path: so_far, found: "a symbolic link, or not a folder", accepted: "a folder, or nothing" });
                }
                Err(why) => return Err(self.failed("open", &so_far)(why)),
            };
        }
        Ok(at)
    }

    /// A descriptor of the root itself.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn try_clone(&self) -> Result<OwnedFd> {
        self.root.try_clone().map_err(Error::io("open", &self.path))
    }

    fn kind(&self, of: &OwnedFd, inside: &Path) -> Result<FileType> {
        let found = fstat(of).map_err(self.failed("look at", inside))?;
        Ok(FileType::from_raw_mode(found.st_mode))
    }

    fn failed<E: Into<std::io::Error>>(&self, action: &'static str, inside: &Path) -> impl FnOnce(E) -> Error + use<E> {
        Error::io(action, &self.path.join(inside.strip_prefix("/").unwrap_or(inside)))
    }
}

/// The whole of a file as text, if it is not longer than `most` bytes.
///
/// # Errors
/// It is longer, or not UTF-8, or cannot be read.
pub fn read_text(file: impl Read, most: usize) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(most as u64 + 1).read_to_string(&mut text)?;
    if text.len() > most {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("it is longer than {most} bytes")));
    }
    Ok(text)
}

/// The name by which the kernel finds an open descriptor again, without looking at any other name.
pub(crate) fn fd_path(of: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", of.as_raw_fd())
}

#[cfg(test)]
mod tests;
