//! OCI runtime specifications.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use oci_spec::runtime::{Hook, Mount};
use serde::Deserialize;
use serde_json::Value;

use crate::engine::{Engine, EngineKeys};

/// Major number of the NVIDIA driver's character devices.
pub const NVIDIA_MAJOR: u64 = 195;
/// The lowest minor number of the driver's nodes that are no GPU: `nvidia-modeset` has 254, `nvidiactl` 255.
const FIRST_CONTROL_MINOR: u32 = 254;

/// An OCI runtime specification. It stays a JSON value: oci-spec's typed `Spec` would drop the fields that it does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The content of `config.json`.
    pub json: Value,
    /// The engine that made it.
    pub engine: Engine,
}

/// A specification of an unknown engine.
impl From<Value> for Spec {
    fn from(json: Value) -> Self {
        Self { json, engine: Engine::Other }
    }
}

impl Spec {
    /// Returns the items of the list at a JSON pointer. Anything but a list counts as empty.
    pub(crate) fn list<'a>(&'a self, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.json.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
    }

    fn strings<'a>(&'a self, pointer: &str, key: &'static str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.list(pointer).filter_map(move |item| item.get(key)?.as_str())
    }

    /// Returns the annotations.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let all = self.json.get("annotations").and_then(Value::as_object).into_iter().flatten();
        all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }

    /// Returns the environment of the container's process. Of a repeated variable, the last value.
    #[must_use]
    pub fn env(&self) -> BTreeMap<String, String> {
        let all = self.list("/process/env").filter_map(|entry| entry.as_str()?.split_once('='));
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Returns an annotation that only the engine can have set. `None` for a key of another engine, which may be a user's.
    fn engines(&self, key: impl Fn(&EngineKeys) -> &'static str) -> Option<&str> {
        self.json.get("annotations")?.get(key(self.engine.keys()?))?.as_str()
    }

    /// Returns whether the engine marks the container with this id as a pod's sandbox.
    #[must_use]
    pub fn is_sandbox(&self, id: &str) -> bool {
        self.engines(|keys| keys.kind) == Some("sandbox") && self.engines(|keys| keys.sandbox_id) == Some(id)
    }

    /// Returns the name of the container in its pod.
    #[must_use]
    pub fn container_name(&self) -> Option<&str> {
        self.engines(|keys| keys.container)
    }

    /// Returns the namespace of the pod.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.engines(|keys| keys.namespace)
    }

    /// Returns the name of the pod.
    #[must_use]
    pub fn pod_name(&self) -> Option<&str> {
        self.engines(|keys| keys.pod)
    }

    /// Returns the UID of the pod.
    #[must_use]
    pub fn pod_uid(&self) -> Option<&str> {
        self.engines(|keys| keys.pod_uid)
    }

    /// Returns the mounts, in order.
    pub fn mounts(&self) -> impl Iterator<Item = Mount> {
        self.list("/mounts").filter_map(mount)
    }

    /// Returns the capabilities of the container's bounding set, as written.
    pub fn bounding_capabilities(&self) -> impl Iterator<Item = &str> {
        self.list("/process/capabilities/bounding").filter_map(Value::as_str)
    }

    /// Returns every host path by which a device node may get into the container: those of its devices, and of mounts from `/dev`.
    /// These are read as strings, so that no malformed item can hide a GPU.
    pub fn device_paths(&self) -> impl Iterator<Item = &str> {
        let mounted = self.strings("/mounts", "source").filter(|source| source.starts_with("/dev"));
        self.strings("/linux/devices", "path").chain(mounted)
    }

    /// Returns the major numbers of its devices, which may have any path in the container, and of those whose nodes it may make and use.
    pub fn device_majors(&self) -> impl Iterator<Item = u64> {
        let is_allowed = |rule: &&Value| rule.get("allow").and_then(Value::as_bool) == Some(true);
        let rules = self.list("/linux/resources/devices").filter(is_allowed);
        self.list("/linux/devices").chain(rules).filter_map(|device| device.get("major")?.as_u64())
    }

    /// Returns whether the container may read or write every character device whose node it makes, without a device of its own: a rule
    /// names no major number (`a *:* rwm`).
    pub fn may_use_all_devices(&self) -> bool {
        let text = |rule: &Value, key, default| rule.get(key).and_then(Value::as_str).unwrap_or(default).to_owned();
        self.list("/linux/resources/devices").any(|rule| {
            let is_any = rule.get("major").and_then(Value::as_i64).is_none_or(|major| major < 0);
            let is_allowed = rule.get("allow").and_then(Value::as_bool) == Some(true);
            let is_character = ["a", "c", "u"].contains(&&*text(rule, "type", "a"));
            is_allowed && is_any && is_character && text(rule, "access", "rwm").contains(['r', 'w'])
        })
    }

    /// Returns whether the container has a namespace of this kind (`pid`, `mount`) that is not the host's.
    #[must_use]
    pub fn has_namespace(&self, kind: &str) -> bool {
        self.strings("/linux/namespaces", "type").any(|found| found == kind)
    }

    /// Returns the minor numbers of its GPUs' device nodes. A node's own number counts, as it may have any path in the container; where no
    /// node has the driver's major number, that in the path.
    #[must_use]
    pub fn gpu_minors(&self) -> Vec<u32> {
        let own = |device: &Value| {
            let is_gpu = device.get("major")?.as_u64()? == NVIDIA_MAJOR;
            u32::try_from(device.get("minor")?.as_u64()?).ok().filter(|&minor| is_gpu && minor < FIRST_CONTROL_MINOR)
        };
        let named = |path: &str| path.strip_prefix("/dev/nvidia")?.parse().ok();
        let mut minors: BTreeSet<u32> = self.list("/linux/devices").filter_map(own).collect();
        if minors.is_empty() {
            minors = self.strings("/linux/devices", "path").filter_map(named).collect();
        }
        minors.extend(self.strings("/mounts", "source").filter_map(named));
        minors.into_iter().collect()
    }

    /// Returns the paths of the hooks that run before the container's process. They are read as strings, as device paths are.
    pub fn hook_paths(&self) -> impl Iterator<Item = &str> {
        ["/hooks/prestart", "/hooks/createRuntime", "/hooks/createContainer"].into_iter().flat_map(|stage| self.strings(stage, "path"))
    }

    /// Returns the well-formed hooks of a stage.
    pub fn hooks<'a>(&'a self, stage: &str) -> impl Iterator<Item = Hook> + use<'a> {
        self.list(&format!("/hooks/{stage}")).filter_map(|hook| Hook::deserialize(hook).ok())
    }
}

/// Parses a mount. One that oci-spec cannot parse is reduced to its destination, type and source, which never hides a mount.
fn mount(item: &Value) -> Option<Mount> {
    let reduced = || {
        let string = |key| item.get(key).and_then(Value::as_str);
        let mut mount = Mount::default();
        mount.set_destination(string("destination")?.into());
        mount.set_typ(string("type").map(str::to_owned)).set_source(string("source").map(PathBuf::from));
        Some(mount)
    };
    Mount::deserialize(item).ok().or_else(reduced)
}

#[cfg(test)]
mod tests;
