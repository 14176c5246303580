//! Mounting with our own hands, inside a container's mount namespace and before its first process. Both ends of every mount are
//! descriptors: no name is looked up twice, so nothing can be swapped between the check and the mount.

use std::cell::Cell;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, fstat, statx};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount_bind_recursive, mount_remount, move_mount, open_tree};

use crate::error::{Error, Result};
use crate::injected::Mounted;
use crate::rootfs::{Rootfs, fd_path};

/// A host file, or folder, that belongs into the container.
#[derive(Debug)]
pub struct Source {
    file: Mounted,
    /// A mount of it that is not attached anywhere yet, if it was taken hold of.
    held: Option<OwnedFd>,
    /// Whether that mount has been attached.
    attached: Cell<bool>,
    identity: (u64, u64),
}

impl Source {
    /// Looks at it.
    ///
    /// # Errors
    /// It is not there.
    pub fn find(file: &Mounted) -> Result<Self> {
        let found = fs::metadata(&file.source).map_err(Error::io("look at", &file.source))?;
        Ok(Self { file: file.clone(), held: None, attached: Cell::new(false), identity: (found.dev(), found.ino()) })
    }

    /// Takes hold of it, so that it can be attached in another mount namespace.
    ///
    /// # Errors
    /// The kernel is older than 5.2.
    pub fn hold(mut self) -> Result<Self> {
        self.held = Some(self.clone_tree()?);
        Ok(self)
    }

    /// Another mount of it.
    fn clone_tree(&self) -> Result<OwnedFd> {
        if let Some(held) = &self.held {
            return clone_tree(held.as_fd(), self.file.inside);
        }
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        flags.set(OpenTreeFlags::AT_RECURSIVE, self.file.folder);
        open_tree(CWD, &self.file.source, flags).map_err(Error::io("take hold of", &self.file.source))
    }

    /// Mounts the file in its place in the container, unless it is there already, and checks that it is.
    ///
    /// # Errors
    /// The place cannot be mounted on, or is something else afterwards.
    pub fn mount(&self, rootfs: &Rootfs) -> Result<()> {
        let inside = self.file.inside;
        let find = || {
            let absent = || Error::Image { path: inside.into(), found: "absent", accepted: "what was made there for the mount" };
            rootfs.find_kind(inside, self.file.folder)?.ok_or_else(absent)
        };
        let target = find()?;
        if identity(target.as_fd(), inside)? == self.identity && is_mount(target.as_fd()) {
            return Ok(());
        }
        self.mount_over(target.as_fd(), inside)?;
        // Through the same path again, which now ends in what was mounted, or something was swapped.
        let mounted = find()?;
        if identity(mounted.as_fd(), inside)? != self.identity || !is_mount(mounted.as_fd()) {
            return Err(Error::Image {
                path: inside.into(),
                found: "not what was mounted there",
                accepted: "an image that nobody changes meanwhile",
            });
        }
        protect(&self.file, mounted.as_fd(), inside)
    }

    /// Makes its place, if that is not there: the image's was made before, but the container may have a volume over it.
    ///
    /// # Errors
    /// The container's paths lead elsewhere, or nothing can be made there.
    pub fn make_place(&self, rootfs: &Rootfs) -> Result<()> {
        match rootfs.find_kind(self.file.inside, self.file.folder)? {
            Some(_) => Ok(()),
            None => rootfs.make(self.file.inside, self.file.folder).map(drop),
        }
    }

    /// Where in the container it belongs.
    #[must_use]
    pub fn inside(&self) -> &'static str {
        self.file.inside
    }

    /// Whether `found` is this file.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn is(&self, found: BorrowedFd<'_>) -> Result<bool> {
        Ok(identity(found, self.file.inside)? == self.identity)
    }

    /// Mounts the file also over what is at `to` in the container.
    ///
    /// # Errors
    /// The mount fails.
    pub fn mount_over(&self, to: BorrowedFd<'_>, inside: &str) -> Result<()> {
        // What is held can only be cloned once it is attached somewhere, so it is what is attached first.
        match &self.held {
            Some(held) if !self.attached.replace(true) => attach(held.as_fd(), to, inside),
            _ => attach(self.clone_tree()?.as_fd(), to, inside),
        }
    }
}

/// Mounts what is at `from` in the container also at `to`.
///
/// # Errors
/// The mount fails.
pub fn beside(from: BorrowedFd<'_>, to: BorrowedFd<'_>, inside: &str) -> Result<()> {
    attach(clone_tree(from, inside)?.as_fd(), to, inside)
}

/// Makes the folders between the root and `inside` mount points, so that none of them can be renamed and another put in its place:
/// the kernel refuses that for a mount point, but not for a folder in which there is one.
///
/// # Errors
/// A mount fails.
pub fn pin_folders(rootfs: &Rootfs, inside: &str) -> Result<()> {
    for (at, _) in inside.match_indices('/').skip(1) {
        let folder = &inside[..at];
        let Some(found) = rootfs.find(folder)? else { return Ok(()) };
        if !is_mount(found.as_fd()) {
            let path = fd_path(&found);
            mount_bind_recursive(&path, &path).map_err(Error::io("mount", folder.as_ref()))?;
        }
    }
    Ok(())
}

fn identity(of: BorrowedFd<'_>, inside: &str) -> Result<(u64, u64)> {
    let found = fstat(of).map_err(Error::io("look at", inside.as_ref()))?;
    Ok((found.st_dev, found.st_ino))
}

/// Whether the descriptor is of the root of a mount.
#[must_use]
pub fn is_mount(of: BorrowedFd<'_>) -> bool {
    statx(of, "", AtFlags::EMPTY_PATH, StatxFlags::empty()).is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn clone_tree(of: BorrowedFd<'_>, inside: &str) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(of, "", flags).map_err(Error::io("take hold of", inside.as_ref()))
}

fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>, inside: &str) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags).map_err(Error::io("mount on", inside.as_ref()))
}

/// Sets the flags of a fresh mount.
fn protect(file: &Mounted, mounted: BorrowedFd<'_>, inside: &str) -> Result<()> {
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    if !file.writable {
        flags |= MountFlags::RDONLY;
    }
    if !file.code {
        flags |= MountFlags::NOEXEC;
    }
    mount_remount(fd_path(&mounted), flags, "").map_err(Error::io("protect the mount on", inside.as_ref()))
}
