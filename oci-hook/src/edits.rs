//! What has to change in a container's specification so that its limits hold.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vgpu_config::Limits;
use vgpu_config::dialect::nvidia;
use vgpu_region::paths;

use crate::spec::Spec;

/// All changes to one container's specification.
#[derive(Clone, Debug, PartialEq)]
pub struct Edits {
    /// Places in the container that are ours. What another mounts there gives way; our hook mounts what belongs there.
    pub places: Vec<&'static str>,
    /// Variables to be set in the environment of the container's process.
    pub env: Vec<(String, String)>,
    /// Hooks to be added behind the others of [`STAGE`].
    pub hooks: Vec<Value>,
}

/// The stage of our hook: inside the container's mounts, before its root file system becomes the root.
pub const STAGE: &str = "createContainer";

/// Where things of one container are on the host.
#[derive(Clone, Debug)]
pub struct Places {
    /// Where in it our hook mounts something; nowhere if no GPU is limited.
    pub inside: Vec<&'static str>,
    /// The state directory.
    pub state_dir: PathBuf,
    /// The hook program.
    pub hook: PathBuf,
}

/// The changes that make `limits` hold.
#[must_use]
pub fn edits(limits: &Limits, places: &Places) -> Edits {
    let mut edits = Edits { places: Vec::new(), env: Vec::new(), hooks: Vec::new() };
    if let Some(devices) = &limits.devices {
        edits.env.push((nvidia::VISIBLE.to_owned(), devices.join(",")));
    }
    if let Some(capabilities) = &limits.driver_capabilities {
        edits.env.push((nvidia::CAPABILITIES.to_owned(), capabilities.clone()));
    }
    if !limits.limit_anything() {
        return edits;
    }
    edits.places.clone_from(&places.inside);
    if let Some(mps) = &limits.mps {
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        edits.env.push(text("CUDA_MPS_PIPE_DIRECTORY", paths::MPS));
        edits.env.push(text("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &mps.percent.to_string()));
        edits.env.extend(mps.memory.as_deref().map(|memory| text("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory)));
    }
    // There is none for the end: a hook costs most of a millisecond, `delete` comes through us, and whatever else stays behind is swept.
    edits.hooks.push(hook(&places.hook, &places.state_dir));
    edits
}

/// The hook that mounts. Nothing of ours is left to the low-level runtime's own mounts: runc before 1.2 makes their places by name, so
/// somebody who exchanges a path in the image meanwhile can have it make an empty file elsewhere on the host; and a mount alone can be
/// got round by renaming the folders that it is in, which only a hook can pin. It costs no more, either.
fn hook(program: &Path, state_dir: &Path) -> Value {
    // Without an environment of its own a hook gets the image's from runc up to 1.2 (CVE-2025-23266).
    json!({ "path": program, "args": [HOOK, HOOK_STAGE, HOOK_STATE, state_dir], "env": ["VGPU=1"], "timeout": 10 })
}

const HOOK: &str = "vgpu-hook";
const HOOK_STAGE: &str = "create-container";
const HOOK_STATE: &str = "--state-dir";

/// Whether `vgpu-runtime` has put its hook into this specification. Unlike its mounts, its hooks are nothing that a tenant has a say in.
#[must_use]
pub fn is_planned(spec: &Spec) -> bool {
    spec.hook_arguments(STAGE).any(|arguments| arguments.starts_with(&[HOOK, HOOK_STAGE, HOOK_STATE]))
}

#[cfg(test)]
mod tests;
