//! Docker: `runtimes` in daemon.json, which has neither drop-ins nor comments. The rest of the file keeps its text.

use super::backup;
use super::error::Error;
use super::options::{HANDLER, Options};
use crate::file_change::{FileChange, read};
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use jsonc_parser::{JsonValue, ParseOptions, parse_to_value};
use serde_json::{Map, Value};
use std::path::Path;

/// Key of the runtimes.
const RUNTIMES: &str = "runtimes";
/// Key of the default runtime's name.
const DEFAULT: &str = "default-runtime";

/// Returns the changes that register vgpu.
pub(super) fn configure(options: &Options) -> Result<Vec<FileChange>, Error> {
    let text = read(&options.config)?;
    let root = parse(&options.config, text.as_deref())?;
    let after = match text {
        Some(text) if registered(&root) == Some(options.runtime.as_str()) && (is_default(&root) || !options.default) => text,
        text => register(&options.config, text.as_deref(), &options.runtime, options.default)?,
    };
    backup::edit(&options.config, after, registered(&root).is_some())
}

/// Returns the changes that remove vgpu.
pub(super) fn undo(config: &Path) -> Result<Vec<FileChange>, Error> {
    let Some(text) = read(config)? else { return Ok(Vec::new()) };
    if registered(&parse(config, Some(&text))?).is_none() {
        return Ok(Vec::new());
    }
    let original = read(&backup::path_of(config))?;
    let cleaned = unregister(config, &text, original.as_deref())?;
    backup::restore(config, cleaned, |text| is_same(text, "{}"), is_same)
}

/// Returns the text of daemon.json with `program` registered as vgpu, and as the default runtime if `default` is set. `path` is for errors.
///
/// # Errors
/// The text is not a JSON object, or `runtimes` is none, or `default-runtime` is no string, or a key occurs twice.
pub fn register(path: &Path, text: Option<&str>, program: &str, default: bool) -> Result<String, Error> {
    if parse(path, text)?.get(DEFAULT).is_some_and(|value| !value.is_string()) {
        return Err(Error::NotAString { path: path.to_owned(), key: DEFAULT });
    }
    let file = edited(path, text)?;
    let object = file.object_value_or_set();
    let not_an_object = |key| Error::NotAnObject { path: path.to_owned(), key };
    let runtimes = object.object_value_or_create(RUNTIMES).ok_or_else(|| not_an_object(RUNTIMES))?;
    // Other keys of the entry, such as runtimeArgs, are the operator's.
    set(&runtimes.object_value_or_set(HANDLER), "path", program);
    if default {
        set(&object, DEFAULT, HANDLER);
    }
    let after = end_with_newline(file.to_string());
    let root = parse(path, Some(&after))?;
    // The editor changes the first of several keys of one name, and Docker reads the last.
    let is_done = registered(&root) == Some(program) && (is_default(&root) || !default);
    if is_done { Ok(after) } else { Err(Error::RepeatedKey { path: path.to_owned() }) }
}

/// Returns the text of daemon.json without vgpu, and with the default runtime of the text `original`, from before vgpu was registered.
/// `path` is for errors.
///
/// # Errors
/// The text is not a JSON object.
pub fn unregister(path: &Path, text: &str, original: Option<&str>) -> Result<String, Error> {
    let was_default = is_default(&parse(path, Some(text))?);
    let original = original.and_then(|text| parse(path, Some(text)).ok()).unwrap_or_default();
    let file = edited(path, Some(text))?;
    let object = file.object_value_or_set();
    if let Some(runtimes) = object.object_value(RUNTIMES) {
        if let Some(entry) = runtimes.get(HANDLER) {
            entry.remove();
        }
        if runtimes.properties().is_empty() && !original.contains_key(RUNTIMES) {
            object.get(RUNTIMES).into_iter().for_each(|property| property.remove());
        }
    }
    if was_default {
        match original.get(DEFAULT).and_then(Value::as_str) {
            Some(runtime) => set(&object, DEFAULT, runtime),
            None => object.get(DEFAULT).into_iter().for_each(|property| property.remove()),
        }
    }
    Ok(end_with_newline(file.to_string()))
}

/// Sets a key of an object to a string.
fn set(object: &CstObject, key: &str, value: &str) {
    let value = CstInputValue::String(value.to_owned());
    match object.get(key) {
        Some(property) => property.set_value(value),
        None => drop(object.append(key, value)),
    }
}

/// Returns an editor of the text, which [`parse`] accepts.
fn edited(path: &Path, text: Option<&str>) -> Result<CstRootNode, Error> {
    let text = text.filter(|text| !is_blank(text)).unwrap_or("{}");
    CstRootNode::parse(text, &ParseOptions::default()).map_err(|source| Error::JsonEdit { path: path.to_owned(), source })
}

/// Returns the text with a newline at its end.
fn end_with_newline(text: String) -> String {
    if text.ends_with('\n') { text } else { text + "\n" }
}

/// Returns whether two texts have the same values. Numbers are compared by their digits, as an integer may exceed every number type.
pub fn is_same(one: &str, other: &str) -> bool {
    fn value(text: &str) -> Option<JsonValue<'_>> {
        parse_to_value(if is_blank(text) { "{}" } else { text }, &ParseOptions::default()).ok().flatten()
    }
    value(one).is_some_and(|one| value(other) == Some(one))
}

/// Returns whether dockerd takes the text for an empty file. It trims what Unicode calls white space, as Rust does.
fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
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
    match text.filter(|text| !is_blank(text)) {
        None => Ok(Map::new()),
        Some(text) => serde_json::from_str(text).map_err(|source| Error::Json { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers vgpu in a text, and returns what undoing that restores.
    fn round_trip(text: &str) -> String {
        let path = Path::new("daemon.json");
        let registered = register(path, Some(text), "/usr/bin/vgpu-runtime", true).unwrap();
        let cleaned = unregister(path, &registered, Some(text)).unwrap();
        if is_same(&cleaned, text) { text.to_owned() } else { cleaned }
    }

    #[test]
    fn undo_restores_numbers_and_blank_files() {
        for text in [
            r#"{"max-concurrent-downloads": 18446744073709551617}"#,
            r#"{"a": -0, "b": 1e3, "c": 1.50}"#,
            " \u{b}\n",
            "{}",
            "{\n    \"default-runtime\": \"nvidia\"\n}\n",
        ] {
            assert_eq!(round_trip(text), text);
        }
    }

    #[test]
    fn files_that_docker_refuses_are_refused() {
        let path = Path::new("daemon.json");
        let error = register(path, Some(r#"{"runtimes": {}, "runtimes": {"a": {}}}"#), "/bin/true", false).unwrap_err();
        assert_eq!(error.to_string(), "daemon.json: expected each key once");
        let error = register(path, Some(r#"{"default-runtime": 1}"#), "/bin/true", false).unwrap_err();
        assert_eq!(error.to_string(), "daemon.json: default-runtime: expected a string");
    }
}
