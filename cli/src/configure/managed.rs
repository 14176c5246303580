//! Files that vgpu manages alone: written, recognized and removed as a whole.

use super::error::Error;
use crate::file_change::{FileChange, read};
use std::path::Path;

/// Returns the first words of a managed configuration file for `runtime`.
pub(crate) fn marker(runtime: &str) -> String {
    format!("# Written by \"vgpu configure {runtime}\"")
}

/// Returns the first line of a managed configuration file.
pub(super) fn header(runtime: &str) -> String {
    format!("{}; \"vgpu configure {runtime} --undo\" removes it.\n", marker(runtime))
}

/// Returns the change that writes the file. Fails if a file that is not managed has its path.
pub(super) fn write(path: &Path, text: String, is_ours: impl Fn(&str) -> bool) -> Result<FileChange, Error> {
    let change = FileChange::new(path, Some(text))?;
    match &change.before {
        Some(before) if !is_ours(before) => Err(Error::NotManaged(path.to_owned())),
        _ => Ok(change),
    }
}

/// Returns the change that removes the file if it is managed.
pub(super) fn remove(path: &Path, is_ours: impl Fn(&str) -> bool) -> Result<FileChange, Error> {
    let before = read(path)?;
    let after = before.clone().filter(|text| !is_ours(text));
    Ok(FileChange { path: path.to_owned(), before, after, like: None })
}
