//! What a container asks for, and what is decided for it. Pure: nothing is read but the specification, nothing is written.

use std::path::Path;

use vgpu_config::decide::Container;
use vgpu_config::dialect::{self, Sources, alnair, claims};
use vgpu_config::policy::Admission;
use vgpu_config::{Inventory, Limits, Policy, Request};

use crate::error::{Error, Result};
use crate::escape::undone_by;
use crate::spec::Spec;

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
        && let Some(by) = undone_by(spec)
    {
        let accepted = "a limited container without it, as the mounts that limit it could be undone (the policy's key privileged)";
        return Err(Error::refused("container", by, accepted));
    }
    Ok(limits)
}

#[cfg(test)]
mod tests;
