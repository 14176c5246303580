//! Reading the TOML files of runtimes that merge key by key, the later file over the earlier.

use super::error::Error;
use crate::file_change::read;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item};

/// The main file and its drop-ins in the order in which they are read, without `skip`.
pub(super) fn layers(main: &Path, drop_ins: &Path, suffix: &str, skip: &Path) -> Result<Vec<DocumentMut>, Error> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(drop_ins).map_or_else(
        |_| Vec::new(),
        |entries| entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect(),
    );
    paths.retain(|path| path != skip && path.to_string_lossy().ends_with(suffix));
    paths.sort();
    paths.insert(0, main.to_owned());
    let mut out = Vec::new();
    for path in paths {
        if let Some(text) = read(&path)? {
            out.push(text.parse().map_err(|source| Error::Toml { path, source: Box::new(source) })?);
        }
    }
    Ok(out)
}

/// The value of a key, given as the names on the way to it, in the last file that has it.
pub(super) fn last<'a>(layers: &'a [DocumentMut], keys: &[&str]) -> Option<&'a Item> {
    layers.iter().rev().find_map(|doc| keys.iter().try_fold(doc.as_item(), |item, key| item.get(key)))
}

/// A list of strings.
pub(super) fn strings(item: &Item) -> Vec<String> {
    let list = item.as_array().into_iter().flatten();
    list.filter_map(|value| value.as_str()).map(str::to_owned).collect()
}
