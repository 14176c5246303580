//! HAMi's cache file. From 2.7 on, HAMi's device plugin mounts a directory of the node over all of `/usr/local/vgpu`, for the one file
//! in it that HAMi's monitor reads (`CUDA_DEVICE_MEMORY_SHARED_CACHE`). vgpu's mount points would be created in that directory, and
//! HAMi's monitor up to 2.9 fails if the directory has more than two files. So the container gets that one file instead.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use oci_spec::runtime::MountBuilder;
use rustix::fs::OFlags;
use serde_json::Value;
use vgpu_region::paths;

use crate::error::{Error, Result};
use crate::path::normalize;
use crate::spec::Spec;

/// The cache file in a directory that is mounted over `/usr/local/vgpu`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile {
    /// Path on the host.
    pub source: PathBuf,
    /// Path in the container.
    pub destination: PathBuf,
}

/// Finds the file `cache` (a container path) in HAMi's directory for this container. `None` if that directory is not mounted: in any
/// other directory, which could be a volume, a tenant could replace the file by a symbolic link before it is mounted.
#[must_use]
pub fn find(spec: &Spec, cache: Option<&str>) -> Option<CacheFile> {
    let directory = directory(spec)?;
    let destination = normalize(Path::new(cache?));
    let name = destination.strip_prefix(paths::DIR).ok()?;
    let is_direct_child = name.components().count() == 1;
    is_direct_child.then(|| CacheFile { source: directory.join(name), destination: destination.clone() })
}

/// Returns HAMi's directory for this container on the host, if it is mounted over `/usr/local/vgpu`.
#[must_use]
pub fn directory(spec: &Spec) -> Option<PathBuf> {
    let mount = spec.mounts().filter(|mount| normalize(mount.destination()) == Path::new(paths::DIR)).last()?;
    let of_container = format!("containers/{}_{}", spec.pod_uid()?, spec.container_name()?);
    mount.source().clone().filter(|source| source.ends_with(of_container))
}

/// Replaces the mount of the directory by a mount of the file.
///
/// # Errors
/// A path is not UTF-8.
pub fn replace_directory(spec: &Spec, cache: &CacheFile) -> Result<Spec> {
    let mount = MountBuilder::default()
        .destination(&cache.destination)
        .typ("bind")
        .source(&cache.source)
        .options(["rbind", "rw", "nosuid", "nodev", "noexec"].map(str::to_owned))
        .build()
        .map_err(|why| Error::Other(format!("cannot mount HAMi's cache: {why}")))?;
    let mount = serde_json::to_value(mount).map_err(|why| Error::Other(format!("cannot mount HAMi's cache: {why}")))?;
    let mut spec = spec.clone();
    for item in spec.json.get_mut("mounts").and_then(Value::as_array_mut).into_iter().flatten() {
        let destination = item.get("destination").and_then(Value::as_str).unwrap_or_default();
        if normalize(Path::new(destination)) == Path::new(paths::DIR) {
            *item = mount.clone();
        }
    }
    Ok(spec)
}

impl CacheFile {
    /// Creates the file, which has to exist to be mounted. As with HAMi, every user in the container may write it.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(&self) -> Result<()> {
        let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;
        let created = OpenOptions::new().create(true).append(true).mode(0o666).custom_flags(flags).open(&self.source);
        created.map(drop).map_err(Error::io("create", &self.source))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::Engine;

    fn spec(destination: &str) -> Spec {
        with_source(destination, "/host/vgpu/containers/uid_main")
    }

    fn with_source(destination: &str, source: &str) -> Spec {
        let json = json!({
            "annotations": { "io.kubernetes.cri.sandbox-uid": "uid", "io.kubernetes.cri.container-name": "main" },
            "mounts": [{ "destination": "/x", "source": "/y" }, { "destination": destination, "source": source }],
        });
        Spec { json, engine: Engine::Containerd }
    }

    #[test]
    fn the_file_replaces_the_directory() {
        let found = find(&spec("/usr/local/vgpu/"), Some("/usr/local/vgpu/u.cache")).unwrap();
        let file = "/host/vgpu/containers/uid_main/u.cache";
        assert_eq!(found, CacheFile { source: file.into(), destination: "/usr/local/vgpu/u.cache".into() });
        let replaced = replace_directory(&spec("/usr/local/vgpu"), &found).unwrap();
        let mount = json!({
            "destination": "/usr/local/vgpu/u.cache", "type": "bind", "source": file,
            "options": ["rbind", "rw", "nosuid", "nodev", "noexec"],
        });
        assert_eq!(replaced.json["mounts"], json!([{ "destination": "/x", "source": "/y" }, mount]));
    }

    #[test]
    fn other_directories_are_not_replaced() {
        for (destination, file) in [
            ("/tmp/vgpu", Some("/tmp/vgpu/u.cache")),
            ("/usr/local/vgpu", None),
            ("/usr/local/vgpu", Some("/tmp/u.cache")),
            ("/usr/local/vgpu", Some("/usr/local/vgpu/a/../../u.cache")),
            ("/usr/local/vgpu", Some("/usr/local/vgpu/a/u.cache")),
        ] {
            assert_eq!(find(&spec(destination), file), None, "{destination}, {file:?}");
        }
        for source in ["/host/vgpu/containers/uid_other", "/pods/uid/volumes/empty-dir/uid_main", "/host/vgpu/containers"] {
            assert_eq!(find(&with_source("/usr/local/vgpu", source), Some("/usr/local/vgpu/u.cache")), None, "{source}");
        }
    }
}
