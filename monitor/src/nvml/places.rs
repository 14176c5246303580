//! Where the driver's NVML may be on a machine, besides the loader's search path.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Name of the library. The unversioned one comes with development packages only.
pub(super) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Folders of the driver, below `/`: those of distributions, of WSL, of Google's Container-Optimized OS, and of the container in which
/// NVIDIA's GPU Operator installs the driver. `packaging/image/driver.sh` has the same ones, in the same order.
const FOLDERS: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "home/kubernetes/bin/nvidia/lib64",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
];

/// Returns the libraries in the known folders below `root`, without links in their paths. An error says why one must not be loaded.
pub(super) fn known(root: &Path) -> impl Iterator<Item = Result<PathBuf, String>> {
    let paths = FOLDERS.iter().filter_map(move |folder| root.join(folder).join(LIBRARY).canonicalize().ok());
    paths.map(|path| distrust(&path).map_or(Ok(path), Err))
}

/// Returns why a file must not be loaded: others than root could have put another one in its place, as far as owners and modes tell.
fn distrust(path: &Path) -> Option<String> {
    path.ancestors().find_map(|part| {
        let shown = part.display();
        let found = match part.symlink_metadata() {
            Ok(found) => found,
            Err(error) => return Some(format!("{shown}: {error}")),
        };
        // In a folder such as /tmp, root's files are root's to replace.
        let is_sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        match found.uid() {
            0 if found.mode() & 0o022 == 0 || is_sticky => None,
            0 => Some(format!("{shown} is writable by users other than root, so {} is not loaded", path.display())),
            other => Some(format!("{shown} is owned by user {other}: expected root, so {} is not loaded", path.display())),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn the_image_looks_in_the_same_folders() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/image/driver.sh");
        let script = fs::read_to_string(path).unwrap();
        let (_, listed) = script.split_once("${NVML_PLACES:-").unwrap();
        let (listed, _) = listed.split_once('}').unwrap();
        assert_eq!(listed.split(' ').collect::<Vec<_>>(), FOLDERS);
    }

    #[test]
    fn a_library_that_only_root_can_replace_is_found() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: expected root, who can create files of root");
        }
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        let found = || known(&path).collect::<Vec<_>>();
        assert_eq!(found(), [], "no driver");
        let folder = path.join("run/nvidia/driver/usr/lib64");
        fs::create_dir_all(&folder).unwrap();
        symlink("libnvidia-ml.so.580", folder.join(LIBRARY)).unwrap();
        assert_eq!(found(), [], "a link that leads nowhere");
        let file = folder.join("libnvidia-ml.so.580");
        fs::write(&file, "").unwrap();
        assert_eq!(found(), [Ok(file.clone())]);

        let refused = |why: &str| found().iter().all(|one| one.as_ref().is_err_and(|reason| reason.contains(why)));
        for changed in [&file, &folder] {
            let mode = changed.metadata().unwrap().permissions();
            fs::set_permissions(changed, Permissions::from_mode(mode.mode() | 0o020)).unwrap();
            assert!(refused(&format!("{} is writable by users other than root", changed.display())), "{:?}", found());
            fs::set_permissions(changed, mode).unwrap();
            chown(changed, Some(1000), None).unwrap();
            assert!(refused(&format!("{} is owned by user 1000: expected root", changed.display())), "{:?}", found());
            chown(changed, Some(0), None).unwrap();
        }
        assert_eq!(found(), [Ok(file)]);
    }
}
