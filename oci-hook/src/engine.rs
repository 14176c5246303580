//! The container engine that made a bundle, and the annotations by which it names the container's pod.
//!
//! Annotations do not say who set them. CRI-O copies those of the pod into each container, and users of Docker, Podman and nerdctl set
//! any. But an engine sets its own keys after the pod's, and it chooses the bundle's path. So the path tells the engine, and only that
//! engine's keys are believed. That a container is a sandbox must also be confirmed by its id, which is random.

use std::path::Path;

use vgpu_config::policy;

/// A container engine, as far as its annotations are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// containerd's CRI plugin.
    Containerd,
    /// CRI-O.
    Crio,
    /// Any other, whose annotations are its users'.
    #[default]
    Other,
}

/// The annotations in which an engine names the container's pod.
#[derive(Debug)]
pub(crate) struct EngineKeys {
    /// `sandbox` or `container`.
    pub(crate) kind: &'static str,
    /// Id of the pod's sandbox. A sandbox's is its own, which nobody knows before the engine has made it. CRI-O sets its keys before the
    /// annotations that its client gives a container, so `kind` alone could be another's.
    pub(crate) sandbox_id: &'static str,
    /// Name of the container in its pod.
    pub(crate) container: &'static str,
    /// Name of the pod.
    pub(crate) pod: &'static str,
    /// Namespace of the pod.
    pub(crate) namespace: &'static str,
    /// UID of the pod.
    pub(crate) pod_uid: &'static str,
}

/// containerd's CRI plugin sets these after the pod's annotations, of which it passes on only those that its configuration lists.
const CONTAINERD: EngineKeys = EngineKeys {
    kind: "io.kubernetes.cri.container-type",
    sandbox_id: "io.kubernetes.cri.sandbox-id",
    container: "io.kubernetes.cri.container-name",
    pod: "io.kubernetes.cri.sandbox-name",
    namespace: "io.kubernetes.cri.sandbox-namespace",
    pod_uid: "io.kubernetes.cri.sandbox-uid",
};

/// CRI-O sets its own keys after the pod's annotations, then those that its client gives the container, and then the others from the
/// container's labels, which are the kubelet's.
const CRIO: EngineKeys = EngineKeys {
    kind: "io.kubernetes.cri-o.ContainerType",
    sandbox_id: "io.kubernetes.cri-o.SandboxID",
    container: "io.kubernetes.container.name",
    pod: "io.kubernetes.pod.name",
    namespace: "io.kubernetes.pod.namespace",
    pod_uid: "io.kubernetes.pod.uid",
};

impl Engine {
    /// Returns the engine that the policy names for the bundle in `dir`, a canonical path.
    #[must_use]
    pub fn of(dir: &Path, policy: policy::Engine) -> Self {
        match policy {
            policy::Engine::Auto => Self::of_path(dir),
            policy::Engine::Containerd => Self::Containerd,
            policy::Engine::Crio => Self::Crio,
            policy::Engine::None => Self::Other,
        }
    }

    /// Returns the engine whose bundles have such a path. Users cannot choose these parts of it:
    ///
    /// * containerd: `STATE/io.containerd.runtime.v2.task/NAMESPACE/ID`. The CRI plugin's namespace is `k8s.io`, Docker's is `moby`.
    /// * CRI-O: `RUNROOT/DRIVER-containers/ID/userdata`, with the run root below `/run`. Podman's bundles have the same form, but are
    ///   in the graph root, which persists.
    fn of_path(dir: &Path) -> Self {
        let mut names = dir.iter().rev().map(|name| name.to_str().unwrap_or_default());
        let [last, middle, first] = std::array::from_fn(|_| names.next().unwrap_or_default());
        if middle == "k8s.io" && first.starts_with("io.containerd.runtime.") {
            Self::Containerd
        } else if last == "userdata" && first.ends_with("-containers") && dir.starts_with("/run") {
            Self::Crio
        } else {
            Self::Other
        }
    }

    /// Returns the annotations that only this engine can have set.
    pub(crate) fn keys(self) -> Option<&'static EngineKeys> {
        match self {
            Self::Containerd => Some(&CONTAINERD),
            Self::Crio => Some(&CRIO),
            Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundles_path_tells_the_engine() {
        for (path, expected) in [
            ("/run/containerd/io.containerd.runtime.v2.task/k8s.io/0a1b", Engine::Containerd),
            ("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/0a1b", Engine::Containerd),
            ("/run/containers/storage/overlay-containers/0a1b/userdata", Engine::Crio),
            ("/run/crio/vfs-containers/0a1b/userdata", Engine::Crio),
            ("/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/0a1b", Engine::Other),
            ("/run/containerd/io.containerd.runtime.v2.task/default/k8s.io", Engine::Other),
            ("/run/containerd/io.containerd.runtime.v2.task/moby/k8s.io/0a1b", Engine::Other),
            ("/var/lib/containers/storage/overlay-containers/0a1b/userdata", Engine::Other),
            ("/home/u/.local/share/containers/storage/overlay-containers/0a1b/userdata", Engine::Other),
            ("/runs/overlay-containers/0a1b/userdata", Engine::Other),
            ("/", Engine::Other),
            ("/tmp/bundle", Engine::Other),
        ] {
            assert_eq!(Engine::of(Path::new(path), policy::Engine::Auto), expected, "{path}");
            assert_eq!(Engine::of(Path::new(path), policy::Engine::Containerd), Engine::Containerd, "{path}");
            assert_eq!(Engine::of(Path::new(path), policy::Engine::Crio), Engine::Crio, "{path}");
            assert_eq!(Engine::of(Path::new(path), policy::Engine::None), Engine::Other, "{path}");
        }
    }
}
