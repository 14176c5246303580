//! Interception by replacement: fronts are mounted over the driver's libraries in the container, and the driver's own beside our
//! library. A front needs our library first and the driver's second, so whatever ours does not define is the driver's. Wherever the
//! driver's files come from (NVIDIA's hook, CDI, bind mounts), they are there when a createContainer hook runs.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use pathrs::Root;
use rustix::fs::{FileType, fstat};
use vgpu_region::paths;

use crate::error::{Error, Result};
use crate::injected::LIBRARIES;
use crate::mounts::{self, Source};
use crate::rootfs::Rootfs;

mod places;

fn place(name: &str) -> String {
    format!("{}/{name}", paths::DRIVER)
}

/// Makes the files onto which the driver's own libraries are mounted.
///
/// # Errors
/// The image leads elsewhere, or cannot be written.
pub fn make_places(rootfs: &Rootfs) -> Result<()> {
    for name in LIBRARIES {
        rootfs.make_file(&place(name))?;
    }
    Ok(())
}

/// Mounts `fronts` over the driver's libraries in the container and these beside our library. `library_path` is the container's
/// `LD_LIBRARY_PATH`. A container without GPUs is left as it is: it has nothing to be limited in.
///
/// # Errors
/// A mount fails; or the container has GPUs, none of the libraries is found, and nothing else `holds` it.
pub fn replace(rootfs: &Rootfs, fronts: &[Source], library_path: &str, holds: bool) -> Result<()> {
    if fronts.is_empty() {
        return Ok(());
    }
    // Links among the driver's libraries are followed, but never out of the root file system.
    let root = Root::from_fd(rootfs.try_clone()?);
    let places = places::all(&root, rootfs, library_path);
    let mut replaced = false;
    for front in fronts {
        replaced |= replace_one(&root, rootfs, front, &places)?;
    }
    if replaced || holds || root.resolve("/dev/nvidiactl").is_err() {
        return Ok(());
    }
    Err(Error::refused(
        "intercept",
        "replace",
        format!(
            "a container in which the driver's {} is found ({}, a folder that is mounted or in LD_LIBRARY_PATH), or intercept = \"both\"",
            LIBRARIES[0],
            places::USUAL.join(", ")
        ),
    ))
}

/// Mounts one front over every file that is such a library; tells whether there was any.
fn replace_one(root: &Root, rootfs: &Rootfs, front: &Source, places: &[String]) -> Result<bool> {
    let name = front.inside();
    let (mut there, mut beside) = (false, false);
    for path in places::files(root, places, name) {
        let Ok(found) = root.resolve(&path) else { continue };
        let found = OwnedFd::from(found);
        if front.is(found.as_fd())? {
            // One of several names of what has been replaced, now or by an earlier hook.
            there = true;
            continue;
        }
        if !is_library(&found) {
            continue;
        }
        if !beside {
            let place = place(name);
            let target = rootfs.find_file(&place)?.ok_or_else(|| Error::Image {
                path: Path::new(&place).into(),
                found: "absent",
                accepted: "the file that was made there when the container was created",
            })?;
            mounts::beside(found.as_fd(), target.as_fd(), &place)?;
            beside = true;
        }
        front.mount_over(found.as_fd(), &path)?;
    }
    Ok(there || beside)
}

fn is_library(found: &OwnedFd) -> bool {
    fstat(found).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size > 0)
}
