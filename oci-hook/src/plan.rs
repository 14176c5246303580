//! What a container requests and what is decided for it. Pure functions of the specification, the policy and the inventory.

use std::path::Path;

use oci_spec::runtime::Mount;
use vgpu_config::decide::Container;
use vgpu_config::dialect::{self, Sources, alnair, claims::ClaimFile, nvidia};
use vgpu_config::policy::Admission;
use vgpu_config::{Inventory, Limits, Policy, Request};

use crate::error::{Error, Result};
use crate::path::normalize;
use crate::privilege::limits_evadable_by;
use crate::spec::{NVIDIA_MAJOR, Spec};

/// Prefix of the annotations by which runtimes add CDI devices.
const CDI_PREFIX: &str = "cdi.k8s.io/";
/// Part of the name of every CDI device that NVIDIA's tools define, such as `nvidia.com/gpu=0`.
const CDI_VENDOR: &str = "nvidia.com/";
/// Container folder in which mounts name the GPUs for NVIDIA's runtime.
const DEVICE_LIST_MOUNTS: &str = "/var/run/nvidia-container-devices";

/// Returns whether the container has a GPU or requests a limit. All other containers are passed on unchanged.
#[must_use]
pub fn is_gpu_container(spec: &Spec, request: &Request, policy: &Policy, state_dir: &Path) -> bool {
    request.is_explicit() || has_gpu(spec, policy, state_dir)
}

/// Returns whether the container with this id is a pod's sandbox, which is passed on unchanged although it has its pod's requests. A
/// sandbox has no GPU; what has one is a container, whatever it is marked as.
#[must_use]
pub fn is_sandbox(spec: &Spec, id: &str, policy: &Policy, state_dir: &Path) -> bool {
    spec.is_sandbox(id) && !has_gpu(spec, policy, state_dir)
}

/// Returns whether this machine has NVIDIA's driver.
fn is_driver_loaded() -> bool {
    ["/proc/driver/nvidia", "/dev/dxg"].iter().any(|path| Path::new(path).exists())
}

/// Returns whether the container gets a GPU, in any of the known ways.
#[must_use]
pub fn has_gpu(spec: &Spec, policy: &Policy, state_dir: &Path) -> bool {
    let is_nvidia = |path: &str| path == "/dev" || path == "/dev/" || path.starts_with("/dev/nvidia") || path.starts_with("/dev/dxg");
    let is_extra = |path: &str| policy.extra_device_nodes.iter().any(|node| Path::new(path) == node);
    let is_claim = |mount: &Mount| mount.source().as_ref().is_some_and(|source| ClaimFile::path_of_mount(source, state_dir).is_some());
    let lists_device = |mount: &Mount| normalize(mount.destination()).starts_with(DEVICE_LIST_MOUNTS);
    nvidia::visible(&spec.env()).has_gpus()
        || spec.device_paths().any(|path| is_nvidia(path) || is_extra(path))
        || spec.device_majors().any(|major| major == NVIDIA_MAJOR)
        || spec.may_use_all_devices() && is_driver_loaded()
        || spec.hook_paths().any(|path| path.contains("nvidia-container"))
        || spec.annotations().iter().any(|(key, value)| key.starts_with(CDI_PREFIX) && value.contains(CDI_VENDOR))
        || spec.mounts().any(|mount| is_claim(&mount) || lists_device(&mount))
}

/// Reads the container's request. `read` returns the content of a host file that is mounted into the container: a claim's, in its
/// directory of the state directory, or one in a folder that the container's user may be able to write.
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
    let minors = spec.gpu_minors();
    let container = Container { namespace: spec.namespace(), minors: &minors };
    let limits = vgpu_config::decide(request, policy, inventory, container)?;
    let is_limited = limits.as_ref().is_some_and(Limits::is_limited);
    if is_limited
        && policy.privileged == Admission::Refuse
        && let Some(reason) = limits_evadable_by(spec)
    {
        let expected = "a limited container without it, as it allows the evasion of the limits (the policy's key privileged)";
        return Err(Error::refused("container", reason, expected));
    }
    Ok(limits)
}

#[cfg(test)]
mod tests;
