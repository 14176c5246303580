//! hooks.d: one file for each stage, in the format that Podman and CRI-O share (oci-hooks(5), version 1.0.0).

use super::error::Error;
use super::{managed, toml_layers};
use crate::file_change::FileChange;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut};

/// The stages that the hook works in, and how it is told its stage.
const STAGES: [(&str, &str); 1] = [("createRuntime", "create-runtime")];
/// What earlier versions had beside it.
const FORMER: [&str; 2] = ["create-container", "poststop"];
/// `argv[0]`, by which our files are known.
const ARGV0: &str = "vgpu-hook";
/// Seconds. A runtime waits for a hook for ever otherwise.
const TIMEOUT: u32 = 10;

/// What Podman and CRI-O read where nothing is said. A list replaces it.
const USUAL: &str = "/usr/share/containers/oci/hooks.d";

/// The folders that are read according to `layers`, where the list is under `keys`, and ours.
pub(super) fn folders(layers: &[DocumentMut], keys: &[&str], ours: &Path) -> Array {
    let mut list = toml_layers::last(layers, keys).map(toml_layers::strings).unwrap_or_default();
    if list.is_empty() {
        list.push(USUAL.to_owned());
    }
    let ours = ours.display().to_string();
    if !list.contains(&ours) {
        list.push(ours);
    }
    Array::from_iter(list)
}

fn write(folder: &Path, hook: &str) -> Result<Vec<FileChange>, Error> {
    let file = |(stage, argument)| managed::write(&path(folder, argument), render(hook, stage, argument), is_ours);
    let former = FORMER.into_iter().map(|argument| managed::remove(&path(folder, argument), is_ours));
    STAGES.into_iter().map(file).chain(former).collect()
}

/// The hooks with the drop-in that has them read: written before it, or removed after it where there is to be no hook.
pub(super) fn beside(drop_in: FileChange, folder: &Path, hook: Option<&str>) -> Result<Vec<FileChange>, Error> {
    Ok(match hook {
        Some(hook) => [write(folder, hook)?, vec![drop_in]].concat(),
        None => [vec![drop_in], remove(folder)?].concat(),
    })
}

fn remove(folder: &Path) -> Result<Vec<FileChange>, Error> {
    let arguments = STAGES.into_iter().map(|(_, argument)| argument).chain(FORMER);
    arguments.map(|argument| managed::remove(&path(folder, argument), is_ours)).collect()
}

/// Hooks run in the order of their files' names: ours late, after those that bring the driver in.
fn path(folder: &Path, argument: &str) -> PathBuf {
    folder.join(format!("99-vgpu-{argument}.json"))
}

fn render(hook: &str, stage: &str, argument: &str) -> String {
    let file = json!({
        "version": "1.0.0",
        "hook": {
            "path": hook,
            "args": [ARGV0, argument],
            // Without an environment of its own a createContainer hook is given the image's by runc (CVE-2025-23266).
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": TIMEOUT,
        },
        // A request may be in the environment, which `when` cannot see. The hook leaves other containers alone.
        "when": { "always": true },
        "stages": [stage],
    });
    serde_json::to_string_pretty(&file).expect("a value is JSON") + "\n"
}

fn is_ours(text: &str) -> bool {
    let file: Result<Value, _> = serde_json::from_str(text);
    file.is_ok_and(|file| file["hook"]["args"][0] == ARGV0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_is_said_once_and_runs_clean() {
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
