//! Docker: `runtimes` in daemon.json, which has neither drop-ins nor comments. All other values and the order of the keys stay.

use super::backup;
use super::error::Error;
use super::options::{HANDLER, Options};
use crate::file_change::{FileChange, read};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::Path;

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

/// Returns the changes that register vgpu.
pub(super) fn configure(options: &Options) -> Result<Vec<FileChange>, Error> {
    let text = read(&options.config)?;
    let mut root = parse(&options.config, text.as_deref())?;
    let is_edited = registered(&root).is_some();
    let before = root.clone();
    let runtimes = root.entry(RUNTIMES).or_insert_with(|| json!({}));
    let Some(runtimes) = runtimes.as_object_mut() else {
        return Err(Error::NotAnObject { path: options.config.clone(), key: RUNTIMES });
    };
    // Other keys of the entry, such as runtimeArgs, are the operator's.
    match runtimes.get_mut(HANDLER).and_then(Value::as_object_mut) {
        Some(entry) => {
            entry.insert("path".into(), json!(options.runtime));
        }
        None => {
            runtimes.insert(HANDLER.into(), json!({ "path": options.runtime }));
        }
    }
    if options.default {
        root.insert(DEFAULT.into(), json!(HANDLER));
    }
    let after = if root == before && text.is_some() { text.unwrap_or_default() } else { format(&root, text.as_deref()) };
    backup::edit(&options.config, after, is_edited)
}

/// Returns the changes that remove vgpu.
pub(super) fn undo(config: &Path) -> Result<Vec<FileChange>, Error> {
    let Some(text) = read(config)? else { return Ok(Vec::new()) };
    let mut root = parse(config, Some(&text))?;
    if registered(&root).is_none() {
        return Ok(Vec::new());
    }
    let original = read(&backup::path_of(config))?.and_then(|text| parse(config, Some(&text)).ok()).unwrap_or_default();
    if let Some(runtimes) = root.get_mut(RUNTIMES).and_then(Value::as_object_mut) {
        runtimes.shift_remove(HANDLER);
        if runtimes.is_empty() && !original.contains_key(RUNTIMES) {
            root.shift_remove(RUNTIMES);
        }
    }
    if is_default(&root) {
        match original.get(DEFAULT) {
            Some(value) => root.insert(DEFAULT.into(), value.clone()),
            None => root.shift_remove(DEFAULT),
        };
    }
    let value = |text: &str| serde_json::from_str::<Value>(if text.trim().is_empty() { "{}" } else { text }).ok();
    backup::restore(config, format(&root, Some(&text)), |t| value(t) == value("{}"), |a, b| value(a) == value(b))
}

/// Returns the program that is registered as vgpu.
pub(crate) fn registered(root: &Map<String, Value>) -> Option<&str> {
    root.get(RUNTIMES)?.get(HANDLER)?.get("path")?.as_str()
}

/// Returns whether vgpu is the default runtime.
pub(crate) fn is_default(root: &Map<String, Value>) -> bool {
    root.get(DEFAULT).and_then(Value::as_str) == Some(HANDLER)
}

/// Parses the file. An empty or missing file is an empty object, as for dockerd.
pub(crate) fn parse(path: &Path, text: Option<&str>) -> Result<Map<String, Value>, Error> {
    match text.filter(|text| !text.trim().is_empty()) {
        None => Ok(Map::new()),
        Some(text) => serde_json::from_str(text).map_err(|source| Error::Json { path: path.to_owned(), source }),
    }
}

/// Formats the file with the indentation of `model`; two spaces by default, as in Docker's documentation.
fn format(root: &Map<String, Value>, model: Option<&str>) -> String {
    let first = model.and_then(|text| text.lines().find(|line| line.starts_with([' ', '\t'])));
    let indent = first.map_or("  ", |line| &line[..line.len() - line.trim_start().len()]);
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    root.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter)).expect("a map of values is JSON");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("serde_json writes UTF-8")
}
