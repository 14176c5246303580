//! What a container requests and what is decided for it. Pure functions of the specification, the policy and the inventory.

use std::path::Path;

use vgpu_config::decide::Container;
use vgpu_config::dialect::{self, Sources, alnair, claims::ClaimFile};
use vgpu_config::policy::Admission;
use vgpu_config::{Inventory, Limits, Policy, Request};

use crate::error::{Error, Result};
use crate::privilege::mounts_removable_by;
use crate::spec::Spec;

/// Returns whether the container has a GPU or requests a limit. All other containers are passed on unchanged.
#[must_use]
pub fn is_gpu_container(spec: &Spec, request: &Request, policy: &Policy) -> bool {
    let is_nvidia = |path: &str| path == "/dev" || path == "/dev/" || path.starts_with("/dev/nvidia") || path.starts_with("/dev/dxg");
    let is_extra = |path: &str| policy.extra_device_nodes.iter().any(|node| Path::new(path) == node);
    request.is_explicit()
        || request.visible.has_gpus()
        || spec.device_paths().any(|path| is_nvidia(path) || is_extra(path))
        || spec.hook_paths().any(|path| path.contains("nvidia-container"))
}

/// Reads the container's request. `read` returns the content of a host file that is mounted into the container; claims' files are those
/// in their directory of the state directory.
///
/// # Errors
/// A value is not documented by its dialect.
pub fn request(spec: &Spec, state_dir: &Path, read: impl Fn(&Path) -> Option<String>) -> Result<Request> {
    let (annotations, env) = (spec.annotations(), spec.env());
    let alnair_limits = env.get(alnair::WORKSPACE).and_then(|workspace| {
        let workspace = spec.mounts().find(|mount| mount.destination() == Path::new(workspace))?;
        read(&workspace.source().as_ref()?.join(alnair::LIMITS_FILE))
    });
    let claim_paths = spec.mounts().filter_map(|mount| ClaimFile::path_of_mount(mount.source().as_ref()?, state_dir));
    let claims: Vec<ClaimFile> = claim_paths.map(|path| ClaimFile { text: read(&path), path }).collect();
    let sources = Sources {
        annotations: &annotations,
        env: &env,
        container: spec.container_name(),
        alnair_limits: alnair_limits.as_deref(),
        claims: &claims,
    };
    Ok(dialect::read(&sources)?)
}

/// Decides the container's limits. `None` if it has none.
///
/// # Errors
/// The request is not allowed or cannot be met.
pub fn decide(spec: &Spec, request: &Request, policy: &Policy, inventory: Option<&Inventory>) -> Result<Option<Limits>> {
    let mut minors: Vec<u32> = spec.device_paths().filter_map(|path| path.strip_prefix("/dev/nvidia")?.parse().ok()).collect();
    minors.sort_unstable();
    minors.dedup();
    let container = Container { namespace: spec.namespace(), minors: &minors };
    let limits = vgpu_config::decide(request, policy, inventory, container)?;
    let is_limited = limits.as_ref().is_some_and(Limits::is_limited);
    if is_limited
        && policy.privileged == Admission::Refuse
        && let Some(reason) = mounts_removable_by(spec)
    {
        let expected = "a limited container without it, as it allows the removal of the limits' mounts (the policy's key privileged)";
        return Err(Error::refused("container", reason, expected));
    }
    Ok(limits)
}

#[cfg(test)]
mod tests;
