//! Mounts inside a container's mount namespace, made before its first process runs. Both ends of every mount are file descriptors: no
//! path is resolved twice, so nothing can be exchanged between the check and the mount.

use std::cell::Cell;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, fstat, statx};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount_bind_recursive, mount_remount, move_mount, open_tree};

use crate::error::{Error, Result};
use crate::injected::InjectedFile;
use crate::rootfs::{Rootfs, fd_path};

/// Device and inode number of a file.
type FileId = (u64, u64);

/// A host file or directory to be mounted into the container.
#[derive(Debug)]
pub struct MountSource {
    file: InjectedFile,
    id: FileId,
    /// A detached mount of the file, if one was made.
    detached: Option<OwnedFd>,
    /// Whether the detached mount has been attached.
    is_attached: Cell<bool>,
}

impl MountSource {
    /// Looks up the file on the host.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn find(file: &InjectedFile) -> Result<Self> {
        let found = fs::metadata(&file.source).map_err(Error::io("stat", &file.source))?;
        Ok(Self { file: file.clone(), id: (found.dev(), found.ino()), detached: None, is_attached: Cell::new(false) })
    }

    /// Makes a detached mount of the file, which can be attached in another mount namespace.
    ///
    /// # Errors
    /// The kernel is older than 5.2.
    pub fn detach(mut self) -> Result<Self> {
        self.detached = Some(self.clone_mount()?);
        Ok(self)
    }

    /// Makes another mount of the file.
    fn clone_mount(&self) -> Result<OwnedFd> {
        if let Some(detached) = &self.detached {
            return clone_mount(detached.as_fd(), self.file.destination);
        }
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        flags.set(OpenTreeFlags::AT_RECURSIVE, self.file.is_dir);
        open_tree(CWD, &self.file.source, flags).map_err(Error::io("clone the mount of", &self.file.source))
    }

    /// Mounts the file at its destination, unless it is mounted there already, and verifies the result.
    ///
    /// # Errors
    /// The destination cannot be mounted on, or is something else afterwards.
    pub fn mount(&self, rootfs: &Rootfs) -> Result<()> {
        let destination = self.file.destination;
        let find = || {
            let absent = || Error::Image { path: destination.into(), found: "absent", expected: "the mount point that was created there" };
            rootfs.find_kind(destination, self.file.is_dir)?.ok_or_else(absent)
        };
        let target = find()?;
        if file_id(target.as_fd(), destination)? == self.id && is_mount(target.as_fd()) {
            return Ok(());
        }
        self.mount_over(target.as_fd(), destination)?;
        // The same path must now lead to the mount; otherwise something was exchanged meanwhile.
        let mounted = find()?;
        if file_id(mounted.as_fd(), destination)? != self.id || !is_mount(mounted.as_fd()) {
            return Err(Error::Image {
                path: destination.into(),
                found: "not the file that was mounted there",
                expected: "an image that does not change meanwhile",
            });
        }
        set_flags(&self.file, mounted.as_fd(), destination)
    }

    /// Creates the mount point if it does not exist. It was created in the image before, but a volume may cover it.
    ///
    /// # Errors
    /// A step of the path is a symbolic link, or the mount point cannot be created.
    pub fn create_mount_point(&self, rootfs: &Rootfs) -> Result<()> {
        match rootfs.find_kind(self.file.destination, self.file.is_dir)? {
            Some(_) => Ok(()),
            None => rootfs.create(self.file.destination, self.file.is_dir).map(drop),
        }
    }

    /// Returns the destination in the container.
    #[must_use]
    pub fn destination(&self) -> &'static str {
        self.file.destination
    }

    /// Returns whether `found` is this file.
    ///
    /// # Errors
    /// The status of `found` cannot be read.
    pub fn is(&self, found: BorrowedFd<'_>) -> Result<bool> {
        Ok(file_id(found, self.file.destination)? == self.id)
    }

    /// Mounts the file over `target`, which is at `path` in the container.
    ///
    /// # Errors
    /// The mount fails.
    pub fn mount_over(&self, target: BorrowedFd<'_>, path: &str) -> Result<()> {
        // A detached mount can only be cloned once it is attached, so it is attached first.
        match &self.detached {
            Some(detached) if !self.is_attached.replace(true) => attach(detached.as_fd(), target, path),
            _ => attach(self.clone_mount()?.as_fd(), target, path),
        }
    }
}

/// Mounts a file of the container also at `target`, which is at `path` in the container.
///
/// # Errors
/// The mount fails.
pub fn bind(source: BorrowedFd<'_>, target: BorrowedFd<'_>, path: &str) -> Result<()> {
    attach(clone_mount(source, path)?.as_fd(), target, path)
}

/// Turns the directories above `path` into mount points, so that none of them can be renamed and replaced: the kernel refuses to rename
/// a mount point, but not a directory that contains one.
///
/// # Errors
/// A mount fails.
pub fn pin_parents(rootfs: &Rootfs, path: &str) -> Result<()> {
    for (at, _) in path.match_indices('/').skip(1) {
        let parent = &path[..at];
        let Some(found) = rootfs.find(parent)? else { return Ok(()) };
        if !is_mount(found.as_fd()) {
            let path = fd_path(&found);
            mount_bind_recursive(&path, &path).map_err(Error::io("mount", parent.as_ref()))?;
        }
    }
    Ok(())
}

fn file_id(of: BorrowedFd<'_>, path: &str) -> Result<FileId> {
    let found = fstat(of).map_err(Error::io("stat", path.as_ref()))?;
    Ok((found.st_dev, found.st_ino))
}

/// Returns whether the descriptor refers to the root of a mount.
#[must_use]
pub fn is_mount(of: BorrowedFd<'_>) -> bool {
    statx(of, "", AtFlags::EMPTY_PATH, StatxFlags::empty()).is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn clone_mount(of: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(of, "", flags).map_err(Error::io("clone the mount of", path.as_ref()))
}

fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>, path: &str) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags).map_err(Error::io("mount on", path.as_ref()))
}

/// Sets the flags of a new mount.
fn set_flags(file: &InjectedFile, mounted: BorrowedFd<'_>, path: &str) -> Result<()> {
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    if !file.is_writable {
        flags |= MountFlags::RDONLY;
    }
    if !file.is_executable {
        flags |= MountFlags::NOEXEC;
    }
    mount_remount(fd_path(&mounted), flags, "").map_err(Error::io("set the flags of the mount on", path.as_ref()))
}
