//! Backups of files that are edited in place, and their restoration.

use super::error::Error;
use crate::file_change::{FileChange, read};
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".vgpu-backup";

/// Returns the path of the backup of `path`. No runtime reads files of this name.
pub(super) fn path_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(SUFFIX);
    path.with_file_name(name)
}

/// Returns whether `path` is a backup.
pub(super) fn is_backup(path: &Path) -> bool {
    path.to_string_lossy().ends_with(SUFFIX)
}

/// Returns the changes that back up `path` and give it the text `after`.
///
/// If the current text `is_edited` by vgpu already, the backup made then stays the original.
pub(super) fn edit(path: &Path, after: String, is_edited: bool) -> Result<Vec<FileChange>, Error> {
    let change = FileChange::new(path, Some(after))?;
    if change.is_empty() || is_edited {
        return Ok(vec![change]);
    }
    let backup = FileChange::new(&path_of(path), change.before.clone())?.like(path);
    Ok(vec![backup, change])
}

/// Returns the changes that undo an edit.
///
/// `cleaned` is the current text without vgpu's part. If it means the `same` as the backup, the backup is restored byte for
/// byte. Otherwise the file was edited by others since, and the cleaned text stays.
pub(super) fn restore(
    path: &Path,
    cleaned: String,
    is_blank: impl Fn(&str) -> bool,
    same: impl Fn(&str, &str) -> bool,
) -> Result<Vec<FileChange>, Error> {
    let backup = path_of(path);
    let original = read(&backup)?;
    let after = match original {
        Some(original) if same(&cleaned, &original) => Some(original),
        None if is_blank(&cleaned) => None,
        _ => Some(cleaned),
    };
    Ok(vec![FileChange::new(path, after)?, FileChange::new(&backup, None)?])
}
