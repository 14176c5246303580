//! Whether a container's privileges allow it to evade its limits.

use std::path::Path;

use caps::Capability;
use vgpu_region::paths;

use crate::hami_cache;
use crate::path::normalize;
use crate::spec::Spec;

/// Capabilities with which the limits can be evaded: the first removes mounts, the second opens files by handle that are on the file
/// system of a mounted file, and so the limits themselves.
const EVADING: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_DAC_READ_SEARCH];
/// With the host's processes in sight, this capability opens the host's root in their entries of `/proc`.
const EVADING_WITH_HOST_PIDS: Capability = Capability::CAP_SYS_PTRACE;

/// Returns what allows a container to evade its limits: a capability, or a volume over one of the mount points.
///
/// Another container with the same volume can remove the mount point, and the kernel then removes the mount. The kernel refuses that
/// only to the container itself.
#[must_use]
pub fn limits_evadable_by(spec: &Spec) -> Option<String> {
    // crun accepts capability names in either case.
    let mut capabilities = spec.bounding_capabilities().filter_map(|name| name.to_ascii_uppercase().parse().ok());
    let has_host_pids = !spec.has_namespace("pid");
    let evades = |capability: &Capability| EVADING.contains(capability) || has_host_pids && *capability == EVADING_WITH_HOST_PIDS;
    if let Some(capability) = capabilities.find(evades) {
        let host_pids = if capability == EVADING_WITH_HOST_PIDS { " in the host's PID namespace" } else { "" };
        return Some(format!("{capability}{host_pids}"));
    }
    let volumes = spec.mounts().filter(|mount| mount.typ().as_deref() != Some("tmpfs"));
    let files = [paths::LIBRARY, paths::LD_SO_PRELOAD].map(Path::new);
    let covers_a_file = |volume: &Path| files.iter().any(|file| *file != volume && file.starts_with(volume));
    // HAMi's directory is replaced by the one file in it.
    let is_hamis = |volume: &Path| volume == Path::new(paths::DIR) && hami_cache::directory(spec).is_some();
    let mut destinations = volumes.map(|mount| normalize(mount.destination()));
    let found = destinations.find(|volume| covers_a_file(volume) && !is_hamis(volume))?;
    Some(format!("a volume over {}", found.display()))
}

#[cfg(test)]
mod tests;
