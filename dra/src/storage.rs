//! Changing files so that a crash leaves either what was before or what comes after.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What we do to files, each a step that happens or does not. Tests end it after any number of steps, as a crash would.
pub trait Storage: Send + Sync {
    /// Puts a file in a place for good, whatever was there before.
    ///
    /// # Errors
    /// It cannot be written.
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()>;
    /// Takes a file away, if it is there.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The real one.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalStorage;

/// Where a file's new contents are until they are in its place.
#[must_use]
pub fn temporary_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

impl Storage for LocalStorage {
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let new = temporary_path(path);
        let mut file = File::create(&new)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(folder)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Says which file it was about.
pub fn at_path(path: &Path) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}
