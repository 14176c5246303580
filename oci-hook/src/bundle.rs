//! An OCI bundle. `config.json` stays a JSON value: a typed round trip would drop the fields it does not know.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vgpu_region::paths;

use crate::apply::plain;
use crate::argv::absolute;
use crate::error::{Error, Result};
use crate::hami;

/// A bundle whose `config.json` has been read.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The folder.
    pub dir: PathBuf,
    /// Its `config.json`, or what stands for it.
    pub config: PathBuf,
    /// The text of that file.
    pub text: Vec<u8>,
    /// What it says.
    pub spec: Spec,
}

impl Bundle {
    /// Reads the bundle in `dir`, and `config` instead of its `config.json` if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is not JSON.
    pub fn load(dir: &Path, config: Option<&Path>) -> Result<Self> {
        let dir = dir.canonicalize().map_err(Error::io("open the bundle", dir))?;
        let config = config.map_or_else(|| dir.join("config.json"), Path::to_owned);
        let text = std::fs::read(&config).map_err(Error::io("read", &config))?;
        let spec = serde_json::from_slice(&text)
            .map_err(|why| Error::Sentence(format!("{}: {why}", vgpu_config::error::one_line(&config.display().to_string()))))?;
        Ok(Self { dir, config, text, spec: Spec(spec) })
    }

    /// Where the container's root file system is.
    ///
    /// # Errors
    /// The specification does not say.
    pub fn rootfs(&self) -> Result<PathBuf> {
        let path = self.spec.0.pointer("/root/path").and_then(Value::as_str);
        path.map(|path| absolute(&self.dir, Path::new(path)))
            .ok_or_else(|| Error::Sentence("config.json has no root.path: accepted is a bundle with a root file system".to_owned()))
    }
}

/// An OCI runtime specification, with the few things that are looked for in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(pub Value);

impl Spec {
    fn list<'a>(&'a self, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.0.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
    }

    fn texts<'a>(&'a self, pointer: &str, key: &'static str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.list(pointer).filter_map(move |item| item.get(key)?.as_str())
    }

    /// The annotations.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let all = self.0.get("annotations").and_then(Value::as_object).into_iter().flatten();
        all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }

    /// The environment of the container's process; of a repeated variable the last.
    #[must_use]
    pub fn env(&self) -> BTreeMap<String, String> {
        let all = self.list("/process/env").filter_map(|entry| entry.as_str()?.split_once('='));
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn annotation(&self, keys: &[&str]) -> Option<&str> {
        let all = self.0.get("annotations")?;
        keys.iter().find_map(|key| all.get(key)?.as_str())
    }

    /// Whether it is a pod's sandbox, which never touches a GPU.
    #[must_use]
    pub fn is_sandbox(&self) -> bool {
        self.annotation(&["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"]) == Some("sandbox")
    }

    /// The container's name in its pod.
    #[must_use]
    pub fn container_name(&self) -> Option<&str> {
        self.annotation(&["io.kubernetes.cri.container-name", "io.kubernetes.container.name", "io.kubernetes.cri-o.ContainerName"])
    }

    /// The namespace of its pod.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.annotation(&["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"])
    }

    /// The name of its pod.
    #[must_use]
    pub fn pod_name(&self) -> Option<&str> {
        self.annotation(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"])
    }

    /// The UID of its pod.
    #[must_use]
    pub fn pod_uid(&self) -> Option<&str> {
        self.annotation(&["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"])
    }

    /// Destinations and sources of its mounts, in order.
    pub fn mounts(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.list("/mounts").filter_map(|mount| Some((mount.get("destination")?.as_str()?, mount.get("source").and_then(Value::as_str))))
    }

    /// Every path in it by which a device node may get into the container: the devices, and what is mounted from `/dev`.
    pub fn device_paths(&self) -> impl Iterator<Item = &str> {
        let mounted = self.texts("/mounts", "source").filter(|source| source.starts_with("/dev"));
        self.texts("/linux/devices", "path").chain(mounted)
    }

    /// The programs of its hooks that run before the container's own.
    pub fn hook_paths(&self) -> impl Iterator<Item = &str> {
        ["/hooks/prestart", "/hooks/createRuntime", "/hooks/createContainer"].into_iter().flat_map(|stage| self.texts(stage, "path"))
    }

    /// The arguments of the hooks at a stage, their programs' names included.
    pub fn hook_arguments<'a>(&'a self, stage: &str) -> impl Iterator<Item = Vec<&'a str>> + use<'a> {
        let arguments = self.list(&format!("/hooks/{stage}")).filter_map(|hook| hook.get("args")?.as_array());
        arguments.map(|arguments| arguments.iter().filter_map(Value::as_str).collect())
    }

    /// Whether it gets a user namespace.
    #[must_use]
    pub fn has_user_namespace(&self) -> bool {
        self.texts("/linux/namespaces", "type").any(|kind| kind == "user")
    }

    /// By what our mounts could be undone, if by anything: CAP_SYS_ADMIN, or a volume that one of their places is in. Whoever else has that
    /// volume can remove the place, and the kernel then takes the mount on it away; it refuses that only to the container itself.
    #[must_use]
    pub fn undone_by(&self) -> Option<String> {
        if self.list("/process/capabilities/bounding").any(|capability| capability == "CAP_SYS_ADMIN") {
            return Some("CAP_SYS_ADMIN".to_owned());
        }
        let volumes = self.list("/mounts").filter(|mount| mount.get("type").and_then(Value::as_str) != Some("tmpfs"));
        let places = volumes.filter_map(|mount| Some(plain(mount.get("destination")?.as_str()?)));
        let files = [paths::LIBRARY, paths::LD_SO_PRELOAD].map(Path::new);
        let holds_ours = |place: &Path| files.iter().any(|file| *file != place && file.starts_with(place));
        // HAMi's folder gives way to the one file in it.
        let is_hamis = |place: &Path| place == Path::new(paths::DIR) && hami::folder(self).is_some();
        let found = places.into_iter().find(|place| holds_ours(place) && !is_hamis(place))?;
        Some(format!("a volume over {}", found.display()))
    }
}

#[cfg(test)]
mod tests;
