//! The inventory of GPUs: its file, for `vgpu-runtime` and `vgpu-hook`, which never load NVML, and its GPUs by UUID.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vgpu_config::inventory::FILE;
use vgpu_config::{Inventory, devices};
use vgpu_region::uuid::Uuid;

use crate::atomic_file::replace;

/// Writes the inventory into the state directory, which is created if missing, and returns the file's path.
///
/// # Errors
/// The directory or the file cannot be written.
pub fn write(state_dir: &Path, inventory: &Inventory) -> io::Result<PathBuf> {
    let path = state_dir.join(FILE);
    let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::create_dir_all(state_dir).map_err(with_path)?;
    let text = serde_json::to_vec_pretty(inventory).map_err(io::Error::other)?;
    // An unchanged file is left alone, for tools that watch it.
    if fs::read(&path).ok().as_ref() != Some(&text) {
        replace(&path, &text).map_err(with_path)?;
    }
    Ok(path)
}

/// GPUs and MIG devices of the inventory by UUID.
#[derive(Clone, Debug, Default)]
pub struct KnownGpus {
    gpus: Vec<Uuid>,
    /// Place in the inventory's order, and memory in bytes.
    by_uuid: HashMap<Uuid, (usize, u64)>,
}

impl KnownGpus {
    /// Indexes an inventory.
    #[must_use]
    pub fn new(inventory: &Inventory) -> Self {
        let with_partitions = inventory.gpus.iter().flat_map(|gpu| {
            let partitions = gpu.mig.iter().map(|mig| (&mig.uuid, mig.memory));
            std::iter::once((&gpu.uuid, gpu.memory)).chain(partitions)
        });
        let by_uuid = with_partitions.enumerate().filter_map(|(place, (uuid, memory))| Some((devices::uuid(uuid)?, (place, memory))));
        Self { gpus: inventory.gpus.iter().filter_map(|gpu| devices::uuid(&gpu.uuid)).collect(), by_uuid: by_uuid.collect() }
    }

    /// Returns the GPUs, without MIG devices.
    pub fn gpus(&self) -> impl Iterator<Item = Uuid> {
        self.gpus.iter().copied()
    }

    /// Returns the place of a GPU or MIG device in the inventory's order.
    #[must_use]
    pub fn place(&self, uuid: Uuid) -> Option<usize> {
        self.by_uuid.get(&uuid).map(|(place, _)| *place)
    }

    /// Returns the memory of a GPU or MIG device in bytes. 0 if the inventory lacks it.
    #[must_use]
    pub fn memory(&self, uuid: Uuid) -> u64 {
        self.by_uuid.get(&uuid).map_or(0, |(_, memory)| *memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::Host;

    #[test]
    fn written_inventories_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("run/vgpu");
        let (inventory, _) = Host::inventory(2);
        for _ in 0..2 {
            assert_eq!(write(&state_dir, &inventory).unwrap(), state_dir.join(FILE));
            assert_eq!(Inventory::load(&state_dir).unwrap(), Some(inventory.clone()));
        }
        assert_eq!(fs::read_dir(&state_dir).unwrap().count(), 1);
    }
}
