//! The changes to a container's specification that make its limits hold.

use std::path::Path;

use oci_spec::runtime::{Hook, HookBuilder};
use vgpu_config::Limits;
use vgpu_config::dialect::nvidia;
use vgpu_region::paths;

use crate::error::{Error, Result};
use crate::spec::Spec;

/// The stage of vgpu's hook: in the container's mount namespace, before its root file system becomes the root.
pub const STAGE: &str = "createContainer";

/// Arguments of vgpu's hook; the path of the state directory follows.
const ARGUMENTS: [&str; 3] = ["vgpu-hook", "create-container", "--state-dir"];

/// Seconds after which the runtime kills the hook. Without a timeout, a runtime waits for a hook forever.
const TIMEOUT_SECS: i64 = 10;

/// All changes to one container's specification.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edits {
    /// Container paths on which vgpu's hook mounts. Other mounts on them are removed.
    pub destinations: Vec<&'static str>,
    /// Variables to be set in the environment of the container's process.
    pub env: Vec<(String, String)>,
    /// Hooks to be appended to [`STAGE`].
    pub hooks: Vec<Hook>,
    /// Whether no process may create a user namespace.
    pub denies_user_namespaces: bool,
}

/// Returns the edits for `limits`. `destinations` are the container paths on which the program `hook` mounts.
///
/// # Errors
/// The hook is invalid.
pub fn edits(limits: &Limits, destinations: Vec<&'static str>, hook: &Path, state_dir: &Path) -> Result<Edits> {
    let mut edits = Edits::default();
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    edits.env.extend(limits.devices.as_ref().map(|devices| variable(nvidia::VISIBLE, &devices.join(","))));
    edits.env.extend(limits.driver_capabilities.as_ref().map(|capabilities| variable(nvidia::CAPABILITIES, capabilities)));
    if !limits.is_limited() {
        return Ok(edits);
    }
    edits.destinations = destinations;
    if let Some(mps) = &limits.mps {
        edits.env.push(variable("CUDA_MPS_PIPE_DIRECTORY", paths::MPS));
        edits.env.push(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &mps.percent.to_string()));
        edits.env.extend(mps.memory.as_deref().map(|memory| variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory)));
    }
    // No poststop hook: a hook costs most of a millisecond, vgpu-runtime handles `delete`, and all other remains are swept.
    edits.hooks.push(mount_hook(hook, state_dir)?);
    Ok(edits)
}

/// Returns the hook that mounts vgpu's files. They are not mounts of the specification for two reasons. runc before 1.2 creates mount
/// points by name, so a process that exchanges a path in the image meanwhile can make it create an empty file elsewhere on the host. And
/// only a hook can pin the parent directories, without which a mount can be bypassed by renaming them. The hook is not slower.
fn mount_hook(program: &Path, state_dir: &Path) -> Result<Hook> {
    let mut arguments = ARGUMENTS.map(str::to_owned).to_vec();
    arguments.push(state_dir.display().to_string());
    HookBuilder::default()
        .path(program)
        .args(arguments)
        // Without an environment of its own, the hook gets the image's from runc up to 1.2 (CVE-2025-23266).
        .env(["VGPU=1".to_owned()])
        .timeout(TIMEOUT_SECS)
        .build()
        .map_err(|why| Error::Other(format!("cannot build the hook: {why}")))
}

/// Returns whether `vgpu-runtime` has added its hook to this specification. A tenant can add mounts, but no hooks.
#[must_use]
pub fn has_runtime_hook(spec: &Spec) -> bool {
    spec.hooks(STAGE).any(|hook| hook.args().as_ref().is_some_and(|args| args.starts_with(&ARGUMENTS.map(str::to_owned))))
}

#[cfg(test)]
mod tests;
