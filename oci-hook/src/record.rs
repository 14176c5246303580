//! What the host keeps on record of a limited container, and the files that it is given.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vgpu_config::Limits;
use vgpu_region::paths;

use crate::injected::{LIBRARIES, Mounted};
use crate::process::Process;

/// The folder of containers in the state directory.
pub const CONTAINERS: &str = "containers";
/// The limits page's file.
pub const LIMITS: &str = "limits";
/// The accounting region's file.
pub const REGION: &str = "region";
/// The merged list for the loader.
pub const PRELOAD: &str = "ld.so.preload";
/// The record's file.
pub const RECORD: &str = "container.json";

/// What the host side knows of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The container's id.
    pub id: String,
    /// Its bundle.
    pub bundle: PathBuf,
    /// Its root file system on the host.
    pub rootfs: PathBuf,
    /// Its name in its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Its pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its pod's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its pod's UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// What was decided for it.
    pub limits: Limits,
    /// The library's file that is mounted into it.
    pub library: PathBuf,
    /// Whether the loader's list is used.
    pub preload: bool,
    /// Whether the driver's libraries are replaced.
    pub replace: bool,
    /// Where the container's programs look for libraries first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub library_path: String,
    /// The low-level runtime, where we know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<PathBuf>,
    /// Folders in one of which that runtime has an entry for the container, as long as it exists.
    pub runtime_roots: Vec<PathBuf>,
    /// Who made this; by the runtime's exec that is the low-level runtime while it creates.
    pub creator: Process,
    /// The container's first process, where we know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Process>,
    /// When, in seconds since 1970.
    pub created: u64,
}

impl Record {
    /// What is mounted into the container, whose folder on the host is `place`.
    #[must_use]
    pub fn files(&self, place: &Path) -> Vec<Mounted> {
        let own = |name, inside, writable| Mounted { source: place.join(name), inside, writable, code: false, folder: false };
        let mut files = vec![
            Mounted { source: self.library.clone(), inside: paths::LIBRARY, writable: false, code: true, folder: false },
            own(LIMITS, paths::LIMITS, false),
            own(REGION, paths::REGION, true),
        ];
        if self.preload {
            files.push(own(PRELOAD, paths::LD_SO_PRELOAD, false));
        }
        if let Some(mps) = &self.limits.mps {
            // Clients open the pipes for writing.
            files.push(Mounted { source: mps.pipes.clone(), inside: paths::MPS, writable: true, code: false, folder: true });
        }
        files
    }

    /// The files that take the place of the driver's libraries, if that is wanted: each needs our library and the driver's own, and has
    /// nothing in it itself. They lie beside our library, in the folder `front`.
    #[must_use]
    pub fn fronts(&self) -> Vec<Mounted> {
        let front = |inside| {
            let source = self.library.with_file_name("front").join(inside);
            Mounted { source, inside, writable: false, code: true, folder: false }
        };
        if self.replace { LIBRARIES.map(front).to_vec() } else { Vec::new() }
    }

    /// Whether the container exists, or is still being made.
    #[must_use]
    pub fn is_live(&self) -> bool {
        // What costs least first: every create asks this of every container.
        self.runtime_roots.iter().any(|root| root.join(&self.id).exists())
            || self.creator.is_alive()
            || self.init.is_some_and(Process::is_alive)
    }
}
