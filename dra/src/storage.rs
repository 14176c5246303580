//! Atomic changes to files: a crash leaves either the old contents or the new ones.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Changes to files. Tests replace it to stop after any number of steps, as a crash would.
pub trait Storage: Send + Sync {
    /// Creates or replaces a file, durably.
    ///
    /// # Errors
    /// The file cannot be written.
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()>;
    /// Removes a file if it exists.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalStorage;

/// Returns the path next to `path` at which new contents are written before they replace it.
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

/// Returns a function that prefixes an error with `path`, for `map_err`.
pub fn at_path<E: Display>(path: &Path) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}
