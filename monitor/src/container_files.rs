//! Files in containers that the host writes. The tenant controls what lies there, so paths are resolved in the container's root without
//! following symbolic links, and only regular files with a single hard link are touched.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Opens or creates the file at `path` below the directory `root`, for reading and writing, with additional `flags`.
///
/// # Errors
/// The file cannot be opened, or is not a regular file with a single link.
pub fn open_file(root: &File, path: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match openat2(root, path, flags, Mode::empty(), RESOLVE) {
        Err(Errno::NOENT) => openat2(root, path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o644), RESOLVE)?,
        other => other?,
    };
    let file = File::from(file);
    let found = file.metadata()?;
    if found.is_file() && found.nlink() == 1 { Ok(file) } else { Err(unexpected_file()) }
}

/// Opens the directory at `path` below the directory `root`. Creates missing components.
///
/// # Errors
/// A component cannot be opened or created, or is `..`.
pub fn open_dir(root: &File, path: &str) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = File::from(openat2(root, ".", flags, Mode::empty(), RESOLVE)?);
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(unexpected_file());
        }
        let next = match openat2(&dir, part, flags, Mode::empty(), RESOLVE) {
            Err(Errno::NOENT) => {
                mkdirat(&dir, part, Mode::from_raw_mode(0o755))?;
                openat2(&dir, part, flags, Mode::empty(), RESOLVE)?
            }
            other => other?,
        };
        dir = File::from(next);
    }
    Ok(dir)
}

/// Error for a path whose content must not be overwritten.
pub fn unexpected_file() -> io::Error {
    io::Error::other("expected no file, or one that vgpu may overwrite")
}
