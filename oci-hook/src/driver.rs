//! Interception by replacement: front libraries are mounted over the driver's libraries in the container, and the driver's own next to
//! vgpu's library. A front depends on vgpu's library first and on the driver's second, so the driver's symbols are used wherever vgpu
//! defines none. Whichever way the driver's files get into the container (NVIDIA's hook, CDI, bind mounts), they are there when a
//! createContainer hook runs.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use pathrs::Root;
use rustix::fs::{FileType, fstat};
use vgpu_region::paths;

use crate::error::{Error, Result};
use crate::injected::DRIVER_LIBRARIES;
use crate::mounts::{self, MountSource};
use crate::rootfs::Rootfs;

mod locations;

/// Returns the container path on which the driver's own library is mounted.
fn moved_path(name: &str) -> String {
    format!("{}/{name}", paths::DRIVER)
}

/// Creates the files on which the driver's own libraries are mounted.
///
/// # Errors
/// A step of a path is a symbolic link, or the image cannot be written.
pub fn create_mount_points(rootfs: &Rootfs) -> Result<()> {
    for name in DRIVER_LIBRARIES {
        rootfs.create_file(&moved_path(name))?;
    }
    Ok(())
}

/// Mounts `fronts` over the driver's libraries in the container, and the driver's libraries next to vgpu's. `library_path` is the
/// container's `LD_LIBRARY_PATH`. A container without GPUs has no driver and is left as it is.
///
/// # Errors
/// A mount fails; or the container has GPUs, no driver library is found, and `/etc/ld.so.preload` is not used either (`is_preloaded`).
pub fn replace(rootfs: &Rootfs, fronts: &[MountSource], library_path: &str, is_preloaded: bool) -> Result<()> {
    if fronts.is_empty() {
        return Ok(());
    }
    // Symbolic links among the driver's libraries are followed, but never out of the root file system.
    let root = Root::from_fd(rootfs.try_clone()?);
    let directories = locations::directories(&root, rootfs, library_path, is_preloaded);
    let mut is_replaced = false;
    for front in fronts {
        is_replaced |= replace_library(&root, rootfs, front, &directories)?;
    }
    if is_replaced || is_preloaded || root.resolve("/dev/nvidiactl").is_err() {
        return Ok(());
    }
    let expected = format!(
        "a container with the driver's {} (in {}, a mounted directory, or LD_LIBRARY_PATH), or intercept = \"both\"",
        DRIVER_LIBRARIES[0],
        locations::DEFAULT_DIRECTORIES.join(", ")
    );
    Err(Error::refused("intercept", "replace", expected))
}

/// Mounts one front over every file of its library, in any version. Returns whether there was one.
fn replace_library(root: &Root, rootfs: &Rootfs, front: &MountSource, directories: &[String]) -> Result<bool> {
    let name = front.destination();
    let (mut has_front, mut is_moved) = (false, false);
    for path in locations::library_files(root, directories, name) {
        let Ok(found) = root.resolve(&path) else { continue };
        let found = OwnedFd::from(found);
        if front.is(found.as_fd())? {
            // Another name of a file that has been replaced, now or by an earlier hook.
            has_front = true;
            continue;
        }
        if !is_library(&found) {
            continue;
        }
        if !is_moved {
            let path = moved_path(name);
            let target = rootfs.find_file(&path)?.ok_or_else(|| Error::Image {
                path: Path::new(&path).into(),
                found: "absent",
                expected: "the file that was created there with the container",
            })?;
            mounts::bind(found.as_fd(), target.as_fd(), &path)?;
            is_moved = true;
        }
        front.mount_over(found.as_fd(), &path)?;
    }
    Ok(has_front || is_moved)
}

fn is_library(found: &OwnedFd) -> bool {
    fstat(found).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size > 0)
}
