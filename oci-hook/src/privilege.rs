//! Whether a container could remove the mounts that limit it.

use std::path::Path;

use serde_json::Value;
use vgpu_region::paths;

use crate::hami;
use crate::path::plain;
use crate::spec::Spec;

/// By what our mounts could be undone, if by anything: CAP_SYS_ADMIN, or a volume that one of their places is in. Whoever else has that
/// volume can remove the place, and the kernel then takes the mount on it away; it refuses that only to the container itself.
#[must_use]
pub fn undone_by(spec: &Spec) -> Option<String> {
    if spec.list("/process/capabilities/bounding").any(|capability| capability == "CAP_SYS_ADMIN") {
        return Some("CAP_SYS_ADMIN".to_owned());
    }
    let volumes = spec.list("/mounts").filter(|mount| mount.get("type").and_then(Value::as_str) != Some("tmpfs"));
    let places = volumes.filter_map(|mount| Some(plain(mount.get("destination")?.as_str()?)));
    let files = [paths::LIBRARY, paths::LD_SO_PRELOAD].map(Path::new);
    let holds_ours = |place: &Path| files.iter().any(|file| *file != place && file.starts_with(place));
    // HAMi's folder gives way to the one file in it.
    let is_hamis = |place: &Path| place == Path::new(paths::DIR) && hami::folder(spec).is_some();
    let found = places.into_iter().find(|place| holds_ours(place) && !is_hamis(place))?;
    Some(format!("a volume over {}", found.display()))
}

#[cfg(test)]
mod tests;
