//! The host's record of a limited container, and the files that are mounted into it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vgpu_config::Limits;
use vgpu_config::limits::GpuLimits;
use vgpu_region::paths;

use crate::injected::{DRIVER_LIBRARIES, InjectedFile};
use crate::process::Process;

/// Directory of the containers' directories in the state directory.
pub const CONTAINERS: &str = "containers";
/// File name of the limits page in a container's directory.
pub const LIMITS: &str = "limits";
/// File name of the accounting region. A link into [`SHARED`], except for rootless containers.
pub const REGION: &str = "region";
/// Name of the directory on which the file system with the accounting region is mounted.
pub const SHARED: &str = "shared";
/// File name of the merged list for the dynamic loader.
pub const PRELOAD: &str = "ld.so.preload";
/// File name of the record.
pub const RECORD: &str = "container.json";

/// The host's record of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Container id.
    pub id: String,
    /// Bundle directory.
    pub bundle: PathBuf,
    /// Root file system on the host.
    pub rootfs: PathBuf,
    /// Name of the container in its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Name of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Namespace of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// UID of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The limits in force.
    pub limits: Limits,
    /// What the request came to, if the limits were changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Vec<GpuLimits>>,
    /// The library's file that is mounted into the container.
    pub library: PathBuf,
    /// Whether `/etc/ld.so.preload` is used.
    pub preload: bool,
    /// Whether the driver's libraries are replaced.
    pub replace: bool,
    /// The container's `LD_LIBRARY_PATH`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub library_path: String,
    /// The low-level runtime, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<PathBuf>,
    /// Directories one of which has an entry of the low-level runtime for the container while it exists.
    pub runtime_roots: Vec<PathBuf>,
    /// The process that creates the container: vgpu-runtime, which becomes the low-level runtime by exec.
    pub creator: Process,
    /// The container's init process, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Process>,
    /// Time of creation, in seconds since the Unix epoch.
    pub created: u64,
    /// Set for a program without a container, which `vgpu run` has started. Its creator is the program itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Program>,
}

/// What the record of a program without a container has besides that of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Directory of the program's own cgroup, which is removed with the record. `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

impl Program {
    /// Returns the name of the cgroup of the program with this id.
    #[must_use]
    pub fn cgroup_name(id: &str) -> String {
        format!("vgpu-{id}")
    }
}

impl Record {
    /// Returns the files that are mounted into the container, whose directory on the host is `dir`.
    #[must_use]
    pub fn injected_files(&self, dir: &Path) -> Vec<InjectedFile> {
        let own = |name, destination, is_writable| InjectedFile {
            source: dir.join(name),
            destination,
            is_writable,
            is_executable: false,
            is_dir: false,
        };
        let library = InjectedFile {
            source: self.library.clone(),
            destination: paths::LIBRARY,
            is_writable: false,
            is_executable: true,
            is_dir: false,
        };
        let mut files = vec![library, own(LIMITS, paths::LIMITS, false), own(REGION, paths::REGION, true)];
        if self.preload {
            files.push(own(PRELOAD, paths::LD_SO_PRELOAD, false));
        }
        if let Some(mps) = &self.limits.mps {
            // Clients only connect to the daemon's sockets and pipes, for which a read-only mount suffices.
            files.push(InjectedFile {
                source: mps.pipes.clone(),
                destination: paths::MPS,
                is_writable: false,
                is_executable: false,
                is_dir: true,
            });
        }
        files
    }

    /// Returns the front libraries that replace the driver's, if the driver's libraries are replaced. A front is an empty library that
    /// depends on vgpu's library and then on the driver's own. The fronts are in the directory `front` next to vgpu's library.
    #[must_use]
    pub fn front_libraries(&self) -> Vec<InjectedFile> {
        let front = |name| InjectedFile {
            source: self.library.with_file_name("front").join(name),
            destination: name,
            is_writable: false,
            is_executable: true,
            is_dir: false,
        };
        if self.replace { DRIVER_LIBRARIES.map(front).to_vec() } else { Vec::new() }
    }

    /// Returns whether the container exists or is being created.
    #[must_use]
    pub fn is_live(&self) -> bool {
        // The cheapest test first: every create tests every container.
        self.runtime_roots.iter().any(|root| root.join(&self.id).exists())
            || self.creator.is_alive()
            || self.init.is_some_and(Process::is_alive)
    }
}
