//! HAMi's folder. From 2.7 on its device plugin mounts a folder of the node's over all of `/usr/local/vgpu`, for the one file in it that
//! its monitor reads (`CUDA_DEVICE_MEMORY_SHARED_CACHE`). Our places would be made in that folder, and HAMi's monitor up to 2.9 gives up
//! where there are more than two files. So the container gets that one file rather than the folder.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vgpu_region::paths;

use crate::error::{Error, Result};
use crate::path::plain;
use crate::spec::Spec;

/// The file in a folder that another mounts over ours, and where the container expects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// On the host.
    pub file: PathBuf,
    /// In the container.
    pub inside: String,
}

/// The file that `cache` names in HAMi's folder for this container; `None` if that is not what is mounted over ours. Any other folder
/// could be a volume in which a tenant swaps the file for a link before it is mounted.
#[must_use]
pub fn cache(spec: &Spec, cache: Option<&str>) -> Option<Cache> {
    let folder = folder(spec)?;
    let inside = plain(cache?);
    let name = inside.strip_prefix(paths::DIR).ok()?;
    let alone = name.components().count() == 1;
    alone.then(|| Cache { file: folder.join(name), inside: inside.display().to_string() })
}

/// HAMi's folder for this container on the host, if that is what is mounted over ours.
#[must_use]
pub fn folder(spec: &Spec) -> Option<&Path> {
    let (_, source) = spec.mounts().filter(|(destination, _)| plain(destination) == Path::new(paths::DIR)).last()?;
    let of_container = format!("containers/{}_{}", spec.pod_uid()?, spec.container_name()?);
    source.map(Path::new).filter(|source| source.ends_with(of_container))
}

/// The specification with the file in the place of the folder.
#[must_use]
pub fn narrowed(spec: &Spec, cache: &Cache) -> Spec {
    let mut spec = spec.0.clone();
    if let Some(mounts) = spec.get_mut("mounts").and_then(Value::as_array_mut) {
        for mount in mounts {
            let destination = mount.get("destination").and_then(Value::as_str).unwrap_or_default();
            if plain(destination) == Path::new(paths::DIR) {
                *mount = json!({
                    "destination": cache.inside,
                    "type": "bind",
                    "source": cache.file,
                    "options": ["rbind", "rw", "nosuid", "nodev", "noexec"],
                });
            }
        }
    }
    Spec(spec)
}

impl Cache {
    /// Makes the file, which has to be there to be mounted. It is everybody's in the container, as HAMi has it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(&self) -> Result<()> {
        let flags = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;
        let made = OpenOptions::new().create(true).append(true).mode(0o666).custom_flags(flags).open(&self.file);
        made.map(drop).map_err(Error::io("make", &self.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(destination: &str) -> Spec {
        with_source(destination, "/host/vgpu/containers/uid_main")
    }

    fn with_source(destination: &str, source: &str) -> Spec {
        Spec(json!({
            "annotations": { "io.kubernetes.cri.sandbox-uid": "uid", "io.kubernetes.cri.container-name": "main" },
            "mounts": [{ "destination": "/x", "source": "/y" }, { "destination": destination, "source": source }],
        }))
    }

    #[test]
    fn the_file_takes_the_folders_place() {
        let found = cache(&spec("/usr/local/vgpu/"), Some("/usr/local/vgpu/u.cache")).unwrap();
        assert_eq!(found, Cache { file: "/host/vgpu/containers/uid_main/u.cache".into(), inside: "/usr/local/vgpu/u.cache".to_owned() });
        let narrowed = narrowed(&spec("/usr/local/vgpu"), &found);
        let mounts: Vec<_> = narrowed.mounts().collect();
        assert_eq!(mounts, [("/x", Some("/y")), ("/usr/local/vgpu/u.cache", Some("/host/vgpu/containers/uid_main/u.cache"))]);
    }

    #[test]
    fn other_folders_stay() {
        for (destination, file) in [
            ("/tmp/vgpu", Some("/tmp/vgpu/u.cache")),
            ("/usr/local/vgpu", None),
            ("/usr/local/vgpu", Some("/tmp/u.cache")),
            ("/usr/local/vgpu", Some("/usr/local/vgpu/a/../../u.cache")),
            ("/usr/local/vgpu", Some("/usr/local/vgpu/a/u.cache")),
        ] {
            assert_eq!(cache(&spec(destination), file), None, "{destination}, {file:?}");
        }
        for source in ["/host/vgpu/containers/uid_other", "/pods/uid/volumes/empty-dir/uid_main", "/host/vgpu/containers"] {
            assert_eq!(cache(&with_source("/usr/local/vgpu", source), Some("/usr/local/vgpu/u.cache")), None, "{source}");
        }
    }
}
