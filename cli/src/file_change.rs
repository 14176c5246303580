//! Changing files so that nobody ever reads half of one, and so that a change can be shown before it is made.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// A file cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    path: PathBuf,
    source: io::Error,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FileError + '_ {
    |source| FileError { path: path.to_owned(), source }
}

/// The text of a file; `None` where there is none.
pub fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// A file before and after; `None` where it does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Which file.
    pub path: PathBuf,
    /// Its text now.
    pub before: Option<String>,
    /// Its text then.
    pub after: Option<String>,
    /// The file whose mode and owner it gets if it is new: what is copied out of a file stays as secret as it was.
    pub like: Option<PathBuf>,
}

impl FileChange {
    /// Reads what is there now.
    pub fn new(path: &Path, after: Option<String>) -> Result<Self, FileError> {
        Ok(Self { path: path.to_owned(), before: read(path)?, after, like: None })
    }

    /// With the mode and owner of another file, should this one be new.
    pub fn like(mut self, other: &Path) -> Self {
        self.like = Some(other.to_owned());
        self
    }

    /// Whether anything changes.
    pub fn is_empty(&self) -> bool {
        self.before == self.after
    }

    /// As a unified diff; empty where nothing changes.
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

    /// Makes the change.
    pub fn apply(&self) -> Result<(), FileError> {
        match &self.after {
            _ if self.is_empty() => Ok(()),
            Some(text) => write(&self.path, text, self.like.as_deref()),
            None => remove(&self.path),
        }
    }
}

/// Replaces a file's text by rename, keeping its mode and owner, and following a symlink to the file it means.
/// A new file gets those of `like`, or may be read by all. Folders that are missing are made.
fn write(path: &Path, text: &str, like: Option<&Path>) -> Result<(), FileError> {
    // A file that is not there yet has no real path, and its folder may not be there either.
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
            let mine = new.as_file().metadata()?;
            if (mine.uid(), mine.gid()) != (old.uid(), old.gid()) {
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
    fn a_replaced_file_keeps_its_mode_and_its_symlink() {
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
    fn a_new_file_gets_its_folders_and_can_be_read_by_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c.toml");
        write(&path, "x", None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
    }

    #[test]
    fn a_copy_is_as_secret_as_its_original() {
        let dir = tempfile::tempdir().unwrap();
        let (original, copy) = (dir.path().join("original"), dir.path().join("copy"));
        fs::write(&original, "password").unwrap();
        fs::set_permissions(&original, Permissions::from_mode(0o600)).unwrap();
        FileChange::new(&copy, Some("password".into())).unwrap().like(&original).apply().unwrap();
        assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_diff_names_what_comes_and_goes() {
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
