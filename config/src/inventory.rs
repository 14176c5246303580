//! The GPUs of this machine, as the host side has written them down: the runtime and the hook never load NVML themselves.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Name of the inventory's file in the state directory.
pub const FILE: &str = "inventory.json";

/// The GPUs of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// In the order of NVML's index.
    pub gpus: Vec<Gpu>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Product name, such as `NVIDIA H200`.
    pub name: String,
    /// All of its memory, in bytes.
    pub memory: u64,
    /// The number of its device node, `/dev/nvidia<minor>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// The pieces it is partitioned into.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<Mig>,
}

/// A MIG device: a piece of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// Its number within its GPU, as in `0:1`.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// Its memory, in bytes.
    pub memory: u64,
}

impl Inventory {
    /// Reads the inventory in the state directory; `None` if there is none.
    ///
    /// # Errors
    /// A file that cannot be read or is no inventory.
    pub fn load(state_dir: &Path) -> Result<Option<Self>> {
        let path = state_dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Unreadable { path, source }),
        };
        let inventory = serde_json::from_slice(&text).map_err(|why| Error::Invalid { path, why: why.to_string() })?;
        Ok(Some(inventory))
    }
}

impl Gpu {
    /// How a message names it.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} {} ({}, {} MiB)", self.index, self.uuid, self.name, self.memory >> 20)
    }
}
