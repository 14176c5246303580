//! What a container may keep beyond its limits: memory that it held, according to NVML, when a limit was lowered.
//!
//! `vgpu set` writes it into a file in the container's directory, which only the host can write. The monitor needs it after a restart: what
//! the container's own account says about that time proves nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::atomic_file::replace;

/// File name in the container's directory.
pub const RIGHTS: &str = "rights.json";

/// Memory that a container may keep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// Number of changes of the limits when this was written.
    pub generation: u64,
    /// Bytes by the GPU's UUID. A missing GPU has no more than its limit.
    pub memory: BTreeMap<String, u64>,
}

impl Rights {
    /// Returns what a container with this limit may hold on a GPU, in bytes.
    #[must_use]
    pub fn allowed(&self, uuid: &str, limit: u64) -> u64 {
        self.memory.get(uuid).copied().unwrap_or(0).max(limit)
    }

    /// Reads the rights in a container's directory. `None` if there are none.
    #[must_use]
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.join(RIGHTS)).ok()?).ok()
    }

    /// Writes the rights into a container's directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        replace(&dir.join(RIGHTS), &serde_json::to_vec(self).map_err(io::Error::other)?)
    }
}
