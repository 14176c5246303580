//! Writing the inventory of GPUs for `vgpu-runtime` and `vgpu-hook`, which never load NVML themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vgpu_config::Inventory;
use vgpu_config::inventory::FILE;

use crate::atomic_file::replace;

/// Writes the inventory into the state directory, which is made if need be, and gives the file's path.
///
/// # Errors
/// It cannot be written.
pub fn write(state_dir: &Path, inventory: &Inventory) -> io::Result<PathBuf> {
    let path = state_dir.join(FILE);
    let told = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::create_dir_all(state_dir).map_err(told)?;
    let text = serde_json::to_vec_pretty(inventory).map_err(io::Error::other)?;
    // Whoever reads it at this moment is not disturbed without need.
    if fs::read(&path).ok().as_ref() != Some(&text) {
        replace(&path, &text).map_err(told)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::Host;

    #[test]
    fn what_is_written_is_read() {
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
