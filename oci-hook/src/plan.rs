//! What has to change in a container's bundle so that its limits hold. Pure: nothing is read but the specification, nothing is
//! written.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vgpu_config::decide::Container;
use vgpu_config::dialect::{self, Sources, alnair, claims, nvidia};
use vgpu_config::policy::Admission;
use vgpu_config::{Inventory, Limits, Policy, Request};
use vgpu_region::paths;

use crate::bundle::Spec;
use crate::error::{Error, Result};

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

/// Whether anything about the container says GPU or limit. All others are passed on at once.
#[must_use]
pub fn concerns(spec: &Spec, request: &Request, policy: &Policy) -> bool {
    let nvidia = |path: &str| path == "/dev" || path == "/dev/" || path.starts_with("/dev/nvidia") || path.starts_with("/dev/dxg");
    let extra = |path: &str| policy.extra_device_nodes.iter().any(|node| Path::new(path) == node);
    request.asks()
        || request.visible.gives()
        || spec.device_paths().any(|path| nvidia(path) || extra(path))
        || spec.hook_paths().any(|path| path.contains("nvidia-container"))
}

/// Reads what the container asks for. `read` gets at the contents of a file that is mounted into the container, by its path on
/// the host; the claims' are those in their folder in the state directory.
///
/// # Errors
/// A value that is not as its dialect documents it.
pub fn request(spec: &Spec, state_dir: &Path, read: impl Fn(&Path) -> Option<String>) -> Result<Request> {
    let (annotations, env) = (spec.annotations(), spec.env());
    let alnair_limits = env.get(alnair::WORKSPACE).and_then(|workspace| {
        let mut mounts = spec.mounts().filter(|(destination, _)| Path::new(destination) == Path::new(workspace));
        read(&Path::new(mounts.next()?.1?).join(alnair::LIMITS_FILE))
    });
    let sources_of_mounts = spec.mounts().filter_map(|(_, source)| claims::File::behind(Path::new(source?), state_dir));
    let claims: Vec<claims::File> = sources_of_mounts.map(|path| claims::File { text: read(&path), path }).collect();
    let sources = Sources {
        annotations: &annotations,
        env: &env,
        container: spec.container_name(),
        alnair_limits: alnair_limits.as_deref(),
        claims: &claims,
    };
    Ok(dialect::read(&sources)?)
}

/// Decides the container's limits; `None` if it has none.
///
/// # Errors
/// What it asks for is not allowed, or cannot be given.
pub fn decide(spec: &Spec, request: &Request, policy: &Policy, inventory: Option<&Inventory>) -> Result<Option<Limits>> {
    let mut minors: Vec<u32> = spec.device_paths().filter_map(|path| path.strip_prefix("/dev/nvidia")?.parse().ok()).collect();
    minors.sort_unstable();
    minors.dedup();
    let container = Container { namespace: spec.namespace(), minors: &minors };
    let limits = vgpu_config::decide(request, policy, inventory, container)?;
    let limited = limits.as_ref().is_some_and(Limits::limit_anything);
    if limited
        && policy.privileged == Admission::Refuse
        && let Some(by) = spec.undone_by()
    {
        let accepted = "a limited container without it, as the mounts that limit it could be undone (the policy's key privileged)";
        return Err(Error::refused("container", by, accepted));
    }
    Ok(limits)
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
