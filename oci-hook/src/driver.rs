//! Interception by replacement: fronts are mounted over the driver's libraries in the container, and the driver's own beside our
//! library. A front needs our library first and the driver's second, so whatever ours does not define is the driver's. Wherever the
//! driver's files come from (NVIDIA's hook, CDI, bind mounts), they are there when a createContainer hook runs.

use std::os::fd::{AsFd, OwnedFd};

use pathrs::Root;
use rustix::fs::fstat;
use vgpu_region::paths;

use crate::error::{Error, Result};
use crate::mounts::{self, Source};
use crate::rootfs::Rootfs;

/// The driver's libraries that programs call.
pub const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// Where the loader finds them, and where NVIDIA's tools put them.
const FOLDERS: [&str; 12] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
];

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

/// Mounts `fronts` over the driver's libraries in the container and these beside our library. A container without a driver is left as
/// it is: it has nothing to be limited in.
///
/// # Errors
/// A mount fails.
pub fn replace(rootfs: &Rootfs, fronts: &[Source]) -> Result<()> {
    // Links among the driver's libraries are followed, but never out of the root file system.
    let root = Root::from_fd(rootfs.try_clone()?);
    for front in fronts {
        let name = front.inside();
        let mut beside = false;
        for folder in FOLDERS {
            let path = format!("{folder}/{name}");
            let Ok(found) = root.resolve(&path) else { continue };
            let found = OwnedFd::from(found);
            if front.is(found.as_fd())? || !is_library(&found) {
                continue;
            }
            if !beside {
                let place = place(name);
                let target = rootfs.find_file(&place)?.ok_or_else(|| Error::Image {
                    path: place.clone().into(),
                    found: "absent",
                    accepted: "the file that was made there when the container was created",
                })?;
                mounts::beside(found.as_fd(), target.as_fd(), &place)?;
                beside = true;
            }
            front.mount_over(found.as_fd(), &path)?;
        }
    }
    Ok(())
}

fn is_library(found: &OwnedFd) -> bool {
    fstat(found).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size > 0)
}
