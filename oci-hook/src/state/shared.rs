//! The part of a container's directory that the container may write: its region, on a file system of its own.
//!
//! The region is bind-mounted into the container. If it were on the file system of the state directory, its container could grow it until
//! that file system, usually the host's `/run`, is full, and a process with `CAP_DAC_READ_SEARCH` could reach the other files there by
//! handle. So the host mounts a tmpfs with room for the region alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use vgpu_region::{region, trace};

use crate::error::{Error, Result};
use crate::process;
use crate::record::{REGION, SHARED};
use crate::spec::Spec;

/// Flags of the mount.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
/// Inodes of the file system: its root and the region. None is left for the container.
const INODES: u32 = 2;

/// Who gets through a container's directory on the host, besides root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nobody.
    Owner,
    /// A group of the host: that of the container's root, which is another user of the host in a user namespace. vgpu's hook runs as it.
    Group(u32),
    /// Everybody, as the container's root is not known.
    Everybody,
}

impl Access {
    /// Returns who has to get through the directory of the container with this specification.
    #[must_use]
    pub fn of(spec: &Spec) -> Self {
        // The state directory of a rootless runtime is in its user's own runtime directory.
        if process::rootless_user().is_some() {
            return Self::Everybody;
        }
        if !spec.list("/linux/namespaces").any(|namespace| namespace["type"] == "user") {
            return Self::Owner;
        }
        let root = spec.list("/linux/gidMappings").find(|map| map["containerID"] == 0 && map["size"].as_u64() > Some(0));
        let group = root.and_then(|map| u32::try_from(map["hostID"].as_u64()?).ok());
        group.map_or(Self::Everybody, Self::Group)
    }

    /// Returns the mode and the group of a directory.
    const fn mode(self) -> (u32, Option<u32>) {
        match self {
            Self::Owner => (0o700, None),
            Self::Group(group) => (0o710, Some(group)),
            Self::Everybody => (0o711, None),
        }
    }

    /// Sets the mode and the group of a directory.
    pub(super) fn apply(self, dir: &Path) -> Result<()> {
        let (mode, group) = self.mode();
        // The group first: the mode must not let another one through.
        chown(dir, None, group.or(Some(rustix::process::getegid().as_raw()))).map_err(Error::io("change the group of", dir))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(Error::io("change the mode of", dir))
    }
}

/// Creates the region in the new container directory `dir`, on a file system of its own, with all its memory.
///
/// Mounts of a rootless runtime are not visible outside its mount namespace, where its user calls `vgpu show`, and end with it. So the region
/// of a rootless container is a plain file. It fills the file system of that user's own runtime directory at most.
///
/// # Errors
/// The file system cannot be mounted, or has no room.
pub(super) fn create(dir: &Path, access: Access, is_traced: bool) -> Result<()> {
    let size = if is_traced { trace::FILE_SIZE } else { region::SIZE as u64 };
    if process::rootless_user().is_some() {
        return create_region(&dir.join(REGION), size);
    }
    let shared = dir.join(SHARED);
    DirBuilder::new().mode(0o700).create(&shared).map_err(Error::io("create", &shared))?;
    let (mode, group) = access.mode();
    let group = group.map_or_else(String::new, |group| format!(",gid={group}"));
    let memory = if is_traced { trace::MAX_MEMORY } else { region::SIZE as u64 };
    let options = format!("size={memory},nr_inodes={INODES},mode={mode:o}{group}");
    mount("vgpu", &shared, "tmpfs", FLAGS, Some(&*c_string(&options)?)).map_err(Error::io("mount a tmpfs on", &shared))?;
    create_region(&shared.join(REGION), size)?;
    // Every program finds the region under one name, also in directories of earlier versions and of rootless containers.
    symlink(Path::new(SHARED).join(REGION), dir.join(REGION)).map_err(Error::io("create", dir))
}

/// Creates a region of `size` bytes, of which the accounts get their memory at once and trace rings when they are used.
fn create_region(path: &Path, size: u64) -> Result<()> {
    let create = || {
        // 0o666: processes of any user in the container may share the GPU.
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o666).open(path)?;
        file.write_all(&region::header())?;
        file.set_len(size)?;
        match fallocate(&file, FallocateFlags::empty(), 0, region::SIZE as u64) {
            // Some file systems cannot allocate in advance.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(why) => return Err(why.into()),
        }
        file.set_permissions(fs::Permissions::from_mode(0o666))
    };
    create().map_err(Error::io("write", path))
}

/// Makes room for the trace rings of a running container, whose directory is `dir`.
///
/// # Errors
/// The file system cannot be remounted.
pub fn make_room_for_rings(dir: &Path) -> Result<()> {
    let shared = dir.join(SHARED);
    if !shared.exists() {
        return Ok(());
    }
    mount_remount(&shared, FLAGS, &*c_string(&format!("size={}", trace::MAX_MEMORY))?).map_err(Error::io("make room in", &shared))
}

/// Unmounts the file system in a container's directory, if there is one. Its memory is released once the container is gone, too.
pub(super) fn unmount_in(dir: &Path) {
    // Not a mount point: there is no file system, or another process was first. If it is still mounted, the directory cannot be removed,
    // and that is reported.
    let _ = unmount(dir.join(SHARED), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

fn c_string(text: &str) -> Result<std::ffi::CString> {
    std::ffi::CString::new(text).map_err(|why| Error::Other(format!("mount options {text:?}: {why}")))
}
