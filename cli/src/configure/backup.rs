//! The copy of a file as it was before us, and the way back to it.

use super::error::Error;
use crate::file_change::{FileChange, read};
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".vgpu-backup";

/// Where the copy of `path` lies. No runtime reads files of this name.
pub(super) fn of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(SUFFIX);
    path.with_file_name(name)
}

/// Whether `path` is such a copy.
pub(super) fn is_copy(path: &Path) -> bool {
    path.to_string_lossy().ends_with(SUFFIX)
}

/// The changes that give `path` the text `after`. Where the text before has nothing of ours, it is what the copy holds
/// from now on; where it has, the copy made then is the original still.
pub(super) fn keep(path: &Path, after: String, touched: bool) -> Result<Vec<FileChange>, Error> {
    let change = FileChange::new(path, Some(after))?;
    if change.is_empty() || touched {
        return Ok(vec![change]);
    }
    let copy = FileChange::new(&of(path), change.before.clone())?.like(path);
    Ok(vec![copy, change])
}

/// The changes that undo ours. `cleaned` is the text now without what is ours; `same` tells whether it still means what
/// the original does, and then the original returns to the byte. Otherwise somebody has edited the file since, and
/// their work stays.
pub(super) fn restore(
    path: &Path,
    cleaned: String,
    is_blank: impl Fn(&str) -> bool,
    same: impl Fn(&str, &str) -> bool,
) -> Result<Vec<FileChange>, Error> {
    let copy = of(path);
    let original = read(&copy)?;
    let after = match original {
        Some(original) if same(&cleaned, &original) => Some(original),
        None if is_blank(&cleaned) => None,
        _ => Some(cleaned),
    };
    Ok(vec![FileChange::new(path, after)?, FileChange::new(&copy, None)?])
}
