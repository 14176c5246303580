//! The inventory of this machine's GPUs, written by the host side. vgpu-runtime and vgpu-hook never load NVML themselves.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// File name of the inventory in the state directory.
pub const FILE: &str = "inventory.json";

/// The GPUs of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The GPUs in the order of their NVML index.
    pub gpus: Vec<Gpu>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Product name, such as `NVIDIA H200`.
    pub name: String,
    /// Total memory in bytes.
    pub memory: u64,
    /// Minor number of the device node, `/dev/nvidia<minor>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// Its MIG devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<Mig>,
}

/// A MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// Index within its GPU: the 1 of `0:1`.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// Total memory in bytes.
    pub memory: u64,
}

impl Inventory {
    /// Reads the inventory in the state directory. `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or is not an inventory.
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
    /// Describes the GPU for a message: index, UUID, name, memory.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} {} ({}, {} MiB)", self.index, self.uuid, self.name, self.memory >> 20)
    }
}
