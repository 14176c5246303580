//! Files that are wholly ours: written as a whole, recognised again, removed as a whole.

use super::error::Error;
use crate::file_change::{FileChange, read};
use std::path::Path;

/// The first words of a configuration file of ours for `runtime`.
pub(crate) fn mark(runtime: &str) -> String {
    format!("# Written by \"vgpu configure {runtime}\"")
}

/// The first lines of a configuration file of ours.
pub(super) fn header(runtime: &str) -> String {
    format!("{}; \"vgpu configure {runtime} --undo\" removes it.\n", mark(runtime))
}

/// Writes the file, unless somebody else's is in its place.
pub(super) fn write(path: &Path, text: String, is_ours: impl Fn(&str) -> bool) -> Result<FileChange, Error> {
    let change = FileChange::new(path, Some(text))?;
    match &change.before {
        Some(before) if !is_ours(before) => Err(Error::NotOurs(path.to_owned())),
        _ => Ok(change),
    }
}

/// Removes the file if it is ours.
pub(super) fn remove(path: &Path, is_ours: impl Fn(&str) -> bool) -> Result<FileChange, Error> {
    let before = read(path)?;
    let after = before.clone().filter(|text| !is_ours(text));
    Ok(FileChange { path: path.to_owned(), before, after, like: None })
}
