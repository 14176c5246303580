//! hooks.d: a file per stage in the format of Podman and CRI-O (oci-hooks(5), version 1.0.0).

use super::error::Error;
use super::{managed, toml_layers};
use crate::file_change::FileChange;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut};

/// Stages of the hook, each with the hook's argument.
const STAGES: [(&str, &str); 1] = [("createRuntime", "create-runtime")];
/// Arguments of stages that earlier versions registered.
const OBSOLETE: [&str; 2] = ["create-container", "poststop"];
/// `argv[0]`, which identifies vgpu's files.
const ARGV0: &str = "vgpu-hook";
/// Timeout in seconds. Without one, a runtime waits for a hook forever.
const TIMEOUT_S: u32 = 10;

/// Default folder of Podman and CRI-O. A configured list replaces it.
const DEFAULT_FOLDER: &str = "/usr/share/containers/oci/hooks.d";

/// Returns the folders that `layers` list under `keys`, and vgpu's.
pub(super) fn folders(layers: &[DocumentMut], keys: &[&str], own: &Path) -> Array {
    let mut list = toml_layers::lookup(layers, keys).map(toml_layers::strings).unwrap_or_default();
    if list.is_empty() {
        list.push(DEFAULT_FOLDER.to_owned());
    }
    let own = own.display().to_string();
    if !list.contains(&own) {
        list.push(own);
    }
    Array::from_iter(list)
}

/// Returns the changes that write the hooks and remove obsolete ones.
fn write(folder: &Path, hook: &str) -> Result<Vec<FileChange>, Error> {
    let file = |(stage, argument)| managed::write(&path(folder, argument), render(hook, stage, argument), is_ours);
    let obsolete = OBSOLETE.into_iter().map(|argument| managed::remove(&path(folder, argument), is_ours));
    STAGES.into_iter().map(file).chain(obsolete).collect()
}

/// Combines the change of the drop-in with those of the hooks.
///
/// Hooks are written before the drop-in that refers to them. Without a `hook` they are removed after it has changed.
pub(super) fn with_drop_in(drop_in: FileChange, folder: &Path, hook: Option<&str>) -> Result<Vec<FileChange>, Error> {
    Ok(match hook {
        Some(hook) => [write(folder, hook)?, vec![drop_in]].concat(),
        None => [vec![drop_in], remove(folder)?].concat(),
    })
}

/// Returns the changes that remove all hooks.
fn remove(folder: &Path) -> Result<Vec<FileChange>, Error> {
    let arguments = STAGES.into_iter().map(|(_, argument)| argument).chain(OBSOLETE);
    arguments.map(|argument| managed::remove(&path(folder, argument), is_ours)).collect()
}

/// Returns the path of a hook's file. Hooks run in order of name: vgpu's run after those that mount the driver.
fn path(folder: &Path, argument: &str) -> PathBuf {
    folder.join(format!("99-vgpu-{argument}.json"))
}

fn render(hook: &str, stage: &str, argument: &str) -> String {
    let file = json!({
        "version": "1.0.0",
        "hook": {
            "path": hook,
            "args": [ARGV0, argument],
            // Without `env`, runc gives a createContainer hook the image's environment (CVE-2025-23266).
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": TIMEOUT_S,
        },
        // `when` cannot match environment variables, which may contain a request. The hook ignores other containers.
        "when": { "always": true },
        "stages": [stage],
    });
    serde_json::to_string_pretty(&file).expect("a value serializes") + "\n"
}

/// Returns whether vgpu wrote a hook's file.
fn is_ours(text: &str) -> bool {
    let file: Result<Value, _> = serde_json::from_str(text);
    file.is_ok_and(|file| file["hook"]["args"][0] == ARGV0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_one_stage_and_a_clean_environment() {
        for (stage, argument) in STAGES {
            let text = render("/usr/bin/vgpu-hook", stage, argument);
            let file: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(file["stages"], json!([stage]));
            assert_eq!(file["hook"]["args"], json!(["vgpu-hook", argument]));
            assert_eq!(file["hook"]["env"].as_array().unwrap().len(), 1, "never the image's environment");
            assert!(is_ours(&text));
        }
        assert!(!is_ours("{\"version\":\"1.0.0\",\"hook\":{\"path\":\"/x\"}}"));
        assert!(!is_ours("not json"));
    }
}
