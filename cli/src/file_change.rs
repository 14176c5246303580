//! Atomic changes of text files, which can be shown as a diff before they are made.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Failure to read or change a file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    path: PathBuf,
    source: io::Error,
}

/// Returns a function that adds `path` to an I/O error.
fn at(path: &Path) -> impl FnOnce(io::Error) -> FileError + '_ {
    |source| FileError { path: path.to_owned(), source }
}

/// Reads the text of a file; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// Change of one file's text. `None` stands for a missing file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Path of the file.
    pub path: PathBuf,
    /// Current text.
    pub before: Option<String>,
    /// New text.
    pub after: Option<String>,
    /// File whose mode and owner a new file gets. A copy of a secret text stays as secret as the original.
    pub like: Option<PathBuf>,
}

impl FileChange {
    /// Reads the current text of `path`, which is to become `after`.
    pub fn new(path: &Path, after: Option<String>) -> Result<Self, FileError> {
        Ok(Self { path: path.to_owned(), before: read(path)?, after, like: None })
    }

    /// Gives the file the mode and owner of `other` if it is new.
    pub fn like(mut self, other: &Path) -> Self {
        self.like = Some(other.to_owned());
        self
    }

    /// Returns whether the text stays the same.
    pub fn is_empty(&self) -> bool {
        self.before == self.after
    }

    /// Formats the change as a unified diff; empty if nothing changes.
    pub fn diff(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let name = |side: &str, text: &Option<String>| match text {
            Some(_) => format!("{side}{}", self.path.display()),
            None => "/dev/null".to_owned(),
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        similar::TextDiff::from_lines(&text(&self.before), &text(&self.after))
            .unified_diff()
            .header(&name("a", &self.before), &name("b", &self.after))
            .to_string()
    }

    /// Writes or removes the file.
    pub fn apply(&self) -> Result<(), FileError> {
        match &self.after {
            _ if self.is_empty() => Ok(()),
            Some(text) => write(&self.path, text, self.like.as_deref()),
            None => remove(&self.path),
        }
    }
}

/// Replaces a file's text by rename. Keeps its mode and owner, and follows symlinks.
///
/// A new file gets the mode and owner of `like`, else mode 0644. Missing folders are created.
fn write(path: &Path, text: &str, like: Option<&Path>) -> Result<(), FileError> {
    // A new file has no canonical path, and its folder may be missing, too.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let model = if real.exists() { Some(real.as_path()) } else { like };
    replace(&real, text, model).map_err(at(path))
}

fn replace(path: &Path, text: &str, model: Option<&Path>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut new = tempfile::Builder::new().prefix(".vgpu-").tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    match model.and_then(|model| fs::metadata(model).ok()) {
        Some(old) => {
            new.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
            let current = new.as_file().metadata()?;
            if (current.uid(), current.gid()) != (old.uid(), old.gid()) {
                chown(new.path(), Some(old.uid()), Some(old.gid()))?;
            }
        }
        None => new.as_file().set_permissions(Permissions::from_mode(0o644))?,
    }
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_replaced_file_keeps_its_mode_and_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        symlink("real", &link).unwrap();
        write(&link, "new", None).unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o7777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn a_new_file_gets_its_folders_and_is_world_readable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c.toml");
        write(&path, "x", None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
    }

    #[test]
    fn a_copy_gets_the_mode_of_its_original() {
        let dir = tempfile::tempdir().unwrap();
        let (original, copy) = (dir.path().join("original"), dir.path().join("copy"));
        fs::write(&original, "password").unwrap();
        fs::set_permissions(&original, Permissions::from_mode(0o600)).unwrap();
        FileChange::new(&copy, Some("password".into())).unwrap().like(&original).apply().unwrap();
        assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_diff_shows_created_and_removed_files() {
        let change = |before: Option<&str>, after: Option<&str>| FileChange {
            path: "/etc/x".into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            like: None,
        };
        assert_eq!(change(None, Some("a\n")).diff(), "--- /dev/null\n+++ b/etc/x\n@@ -0,0 +1 @@\n+a\n");
        assert_eq!(change(Some("a\n"), None).diff(), "--- a/etc/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n");
        assert_eq!(change(Some("a\n"), Some("a\n")).diff(), "");
    }
}
