//! An OCI runtime specification, kept as a JSON value.

use std::collections::BTreeMap;

use serde_json::Value;

/// An OCI runtime specification, with the few things that are looked for in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(pub Value);

impl Spec {
    pub(crate) fn list<'a>(&'a self, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
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
}

#[cfg(test)]
mod tests;
