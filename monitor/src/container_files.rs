//! Files in containers that the host side writes. What lies there is the tenant's, so they are reached through the container's own root,
//! over no symbolic link, and are touched only if they are regular files with one name.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;

const HOW: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Opens or makes the file at `path` below the folder `root`, for reading and writing, and with these flags.
///
/// # Errors
/// It cannot be opened, or something else is there.
pub fn open_file(root: &File, path: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match openat2(root, path, flags, Mode::empty(), HOW) {
        Err(Errno::NOENT) => openat2(root, path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o644), HOW)?,
        other => other?,
    };
    let file = File::from(file);
    let found = file.metadata()?;
    if found.is_file() && found.nlink() == 1 { Ok(file) } else { Err(unexpected_file()) }
}

/// Opens the folder at `path` below the folder `root`; what of it is missing is made.
///
/// # Errors
/// It cannot be opened or made.
pub fn open_dir(root: &File, path: &str) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folder = File::from(openat2(root, ".", flags, Mode::empty(), HOW)?);
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(unexpected_file());
        }
        let next = match openat2(&folder, part, flags, Mode::empty(), HOW) {
            Err(Errno::NOENT) => {
                mkdirat(&folder, part, Mode::from_raw_mode(0o755))?;
                openat2(&folder, part, flags, Mode::empty(), HOW)?
            }
            other => other?,
        };
        folder = File::from(next);
    }
    Ok(folder)
}

/// What is there is not what may be written.
pub fn unexpected_file() -> io::Error {
    io::Error::other("something else is there")
}
