//! Writes the inventory of GPUs for `vgpu-runtime` and `vgpu-hook`, which never load NVML.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vgpu_config::Inventory;
use vgpu_config::inventory::FILE;

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
