//! Docker: `runtimes` in daemon.json. Docker has no drop-ins, and JSON no comments; what must stay is every other value
//! and the order of the keys.

use super::backup;
use super::error::Error;
use super::options::{HANDLER, Options};
use crate::file_change::{FileChange, read};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::Path;

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

pub(super) fn configure(options: &Options) -> Result<Vec<FileChange>, Error> {
    let text = read(&options.config)?;
    let mut root = parse(&options.config, text.as_deref())?;
    let touched = registered(&root).is_some();
    let before = root.clone();
    let runtimes = root.entry(RUNTIMES).or_insert_with(|| json!({}));
    let Some(runtimes) = runtimes.as_object_mut() else {
        return Err(Error::Shape { path: options.config.clone(), what: "runtimes is not an object".into() });
    };
    // What else is said of our runtime (runtimeArgs) is the operator's.
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
    let after = if root == before && text.is_some() { text.unwrap_or_default() } else { print(&root, text.as_deref()) };
    backup::keep(&options.config, after, touched)
}

pub(super) fn undo(config: &Path) -> Result<Vec<FileChange>, Error> {
    let Some(text) = read(config)? else { return Ok(Vec::new()) };
    let mut root = parse(config, Some(&text))?;
    if registered(&root).is_none() {
        return Ok(Vec::new());
    }
    let original = read(&backup::of(config))?.and_then(|text| parse(config, Some(&text)).ok()).unwrap_or_default();
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
    backup::restore(config, print(&root, Some(&text)), |t| value(t) == value("{}"), |a, b| value(a) == value(b))
}

/// The runtime registered under our name.
pub(crate) fn registered(root: &Map<String, Value>) -> Option<&str> {
    root.get(RUNTIMES)?.get(HANDLER)?.get("path")?.as_str()
}

/// Whether containers get it that name no runtime.
pub(crate) fn is_default(root: &Map<String, Value>) -> bool {
    root.get(DEFAULT).and_then(Value::as_str) == Some(HANDLER)
}

/// The file as an object; an empty or missing file is an empty one, as to dockerd.
pub(crate) fn parse(path: &Path, text: Option<&str>) -> Result<Map<String, Value>, Error> {
    match text.filter(|text| !text.trim().is_empty()) {
        None => Ok(Map::new()),
        Some(text) => serde_json::from_str(text).map_err(|source| Error::Json { path: path.to_owned(), source }),
    }
}

/// Prints with the indentation that the file has; Docker's documentation uses two spaces.
fn print(root: &Map<String, Value>, model: Option<&str>) -> String {
    let first = model.and_then(|text| text.lines().find(|line| line.starts_with([' ', '\t'])));
    let indent = first.map_or("  ", |line| &line[..line.len() - line.trim_start().len()]);
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    root.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter)).expect("a map of values is JSON");
    out.push(b'\n');
    String::from_utf8(out).expect("serde_json writes UTF-8")
}
