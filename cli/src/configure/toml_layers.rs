//! TOML files that a runtime merges key by key, later files over earlier ones.

use super::error::Error;
use crate::file_change::read;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item};

/// Loads the main file and its drop-ins, except `skip`, in the runtime's order.
pub(super) fn load(main: &Path, drop_ins: &Path, suffix: &str, skip: &Path) -> Result<Vec<DocumentMut>, Error> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(drop_ins).map_or_else(
        |_| Vec::new(),
        |entries| entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect(),
    );
    paths.retain(|path| path != skip && path.to_string_lossy().ends_with(suffix));
    paths.sort();
    paths.insert(0, main.to_owned());
    let mut layers = Vec::new();
    for path in paths {
        if let Some(text) = read(&path)? {
            layers.push(text.parse().map_err(|source| Error::Toml { path, source: Box::new(source) })?);
        }
    }
    Ok(layers)
}

/// Returns the effective value of the key at the path `keys`: that of the last file that has it.
pub(super) fn lookup<'a>(layers: &'a [DocumentMut], keys: &[&str]) -> Option<&'a Item> {
    layers.iter().rev().find_map(|doc| keys.iter().try_fold(doc.as_item(), |item, key| item.get(key)))
}

/// Returns the strings of an array.
pub(super) fn strings(item: &Item) -> Vec<String> {
    let list = item.as_array().into_iter().flatten();
    list.filter_map(|value| value.as_str()).map(str::to_owned).collect()
}
