//! Files in containers that the host writes, with the rights of the container's user. The tenant controls what lies there and may name
//! anything, so
//! * paths are resolved in the container's root, without following symbolic links,
//! * only files on ordinary file systems are touched: what is written to `/proc`, `/sys` or a cgroup has effects,
//! * a file is looked at before it is opened, as opening a device has effects, too,
//! * only a regular file with a single link is opened, and only if it belongs to the user and its content is ours. All others are left
//!   as they are.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, mkdirat, openat2};
use rustix::io::Errno;
use rustix::process::geteuid;

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// File systems that keep files in the memory of whoever writes them: tmpfs, ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
/// Other file systems that only store files: ext2 to ext4, XFS, Btrfs, overlayfs, F2FS, ZFS, bcachefs, JFS, ReiserFS, OCFS2, GFS2, eCryptfs,
/// aufs, FAT, exFAT, NTFS, NFS, SMB (two), Ceph, FUSE (also virtiofs), 9P, Lustre, GPFS, BeeGFS, VxFS.
const ON_DISK: [u32; 26] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x3153_464a,
    0x5265_4973,
    0x7461_636f,
    0x0116_1970,
    0xf15f,
    0x6175_6673,
    0x4d44,
    0x2011_bab0,
    0x7366_746e,
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x6573_5546,
    0x0102_1997,
    0x0bd0_0bd0,
    0x4750_4653,
    0x1983_0326,
    0xa501_fcf5,
];

/// Opens or creates the file at `path` below the directory `root`, for reading and writing, with additional `flags`. `is_ours` decides from
/// the content of an existing file whether it may be overwritten.
///
/// # Errors
/// The file cannot be opened, or is one that is left as it is.
pub fn open_file(root: &File, path: &str, flags: OFlags, is_ours: impl Fn(&File) -> io::Result<bool>) -> io::Result<File> {
    let found = match openat2(root, path, PATH, Mode::empty(), RESOLVE) {
        Err(Errno::NOENT) => return create(root, path, flags),
        other => File::from(other?),
    };
    check_file_system(&found)?;
    let metadata = found.metadata()?;
    if !metadata.is_file() || metadata.nlink() != 1 || metadata.uid() != geteuid().as_raw() {
        return Err(unexpected_file());
    }
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    // The same file that was looked at, whatever has the name now.
    let this = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(this)?;
    if is_ours(&file)? { Ok(file) } else { Err(unexpected_file()) }
}

/// Creates the file at `path`, where none may be.
fn create(root: &File, path: &str, flags: OFlags) -> io::Result<File> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let parent = if parent.is_empty() { "/" } else { parent };
    let parent = File::from(openat2(root, parent, PATH | OFlags::DIRECTORY, Mode::empty(), RESOLVE)?);
    check_file_system(&parent)?;
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat2(&parent, name, flags, Mode::from_raw_mode(0o644), RESOLVE)?);
    check_file_system(&file)?;
    Ok(file)
}

/// Opens the directory at `path` below the directory `root`. Creates missing components.
///
/// # Errors
/// A component cannot be opened or created, or is `..`.
pub fn open_dir(root: &File, path: &str) -> io::Result<File> {
    let flags = PATH | OFlags::DIRECTORY;
    let mut dir = File::from(openat2(root, ".", flags, Mode::empty(), RESOLVE)?);
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(unexpected_file());
        }
        let next = match openat2(&dir, part, flags, Mode::empty(), RESOLVE) {
            Err(Errno::NOENT) => {
                check_file_system(&dir)?;
                mkdirat(&dir, part, Mode::from_raw_mode(0o755))?;
                openat2(&dir, part, flags, Mode::empty(), RESOLVE)?
            }
            other => other?,
        };
        dir = File::from(next);
    }
    Ok(dir)
}

/// Returns whether a file's content is in memory, which its writer pays for.
///
/// # Errors
/// The file system does not answer.
pub fn is_in_memory(file: &File) -> io::Result<bool> {
    Ok(IN_MEMORY.contains(&file_system(file)?))
}

/// Returns the magic number of a file's file system, which has 32 bits whatever the type of the field.
fn file_system(file: &File) -> io::Result<u32> {
    Ok(fstatfs(file)?.f_type as u32)
}

/// Refuses file systems that are not known to only store files.
fn check_file_system(file: &File) -> io::Result<()> {
    let kind = file_system(file)?;
    if ON_DISK.contains(&kind) || IN_MEMORY.contains(&kind) {
        return Ok(());
    }
    Err(io::Error::other(format!("file system of type {kind:#x}: expected one that only stores files")))
}

/// Error for a path whose content must not be overwritten.
pub fn unexpected_file() -> io::Error {
    io::Error::other("expected no file, or one of the container's user that vgpu may overwrite")
}

#[cfg(test)]
mod tests;
