//! Root file systems that expose the programs of the host, so that every installed program runs in a container.

use std::fs::{self, DirEntry};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::bundle::{Bundle, specification};

/// Top-level folders that programs come from.
const PROGRAM_FOLDERS: [&str; 9] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "opt"];

impl Bundle {
    /// Creates a root file system with the host's programs and libraries, read-only and without `/usr/local/vgpu`, and a specification that
    /// runs `true`.
    ///
    /// # Panics
    /// The temporary folder cannot be written, or the host's folders cannot be read.
    #[must_use]
    pub fn of_host() -> Self {
        let dir = TempDir::with_prefix("vgpu-bundle-").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut bundle = Self { dir, placed: None, id: None, spec: specification() };
        for folder in ["dev", "etc", "proc", "sys", "tmp", "root", "run", "usr/local", "var/tmp"] {
            fs::create_dir_all(bundle.rootfs().join(folder)).unwrap();
        }
        for folder in ["tmp", "var/tmp"] {
            fs::set_permissions(bundle.rootfs().join(folder), fs::Permissions::from_mode(0o1777)).unwrap();
        }
        bundle = bundle.mount_entries("/", |name| PROGRAM_FOLDERS.contains(&name));
        bundle = bundle.mount_entries("/usr", |name| name != "local");
        bundle = bundle.mount_entries("/usr/local", |name| name != "vgpu");
        for file in ["passwd", "group", "nsswitch.conf", "ld.so.cache", "alternatives"] {
            let from = Path::new("/etc").join(file);
            if from.exists() {
                let copied = Command::new("cp").arg("-a").arg(from).arg(bundle.rootfs().join("etc")).status().unwrap();
                assert!(copied.success(), "copy /etc/{file}");
            }
        }
        bundle
    }

    /// Exposes entries of a folder of the host: links are copied, folders are mounted read-only.
    fn mount_entries(mut self, folder: &str, which: impl Fn(&str) -> bool) -> Self {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !which(&name) {
                continue;
            }
            let inside = Path::new(folder).join(&name);
            let target = self.rootfs().join(inside.strip_prefix("/").unwrap());
            if entry.file_type().unwrap().is_symlink() {
                symlink(fs::read_link(entry.path()).unwrap(), target).unwrap();
            } else if entry.path().is_dir() {
                self = self.bind(&inside, inside.to_str().unwrap(), &["ro"]);
            }
        }
        self
    }

    /// Adds the device nodes of the host's NVIDIA driver, and `folder` with its libraries to the library path.
    ///
    /// # Panics
    /// The host's `/dev` cannot be read.
    #[must_use]
    pub fn nvidia(mut self, folder: &Path) -> Self {
        for entry in fs::read_dir("/dev").unwrap().flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("nvidia")) {
            self = self.device_nodes(&entry);
        }
        // With cgroup v2, a container can only use devices that a rule allows.
        self.spec["linux"]["resources"]["devices"] = json!([{ "allow": true, "access": "rwm" }]);
        self.env("LD_LIBRARY_PATH", folder.to_str().unwrap())
    }

    /// Adds a device node of the host, or all nodes in a folder.
    fn device_nodes(mut self, entry: &DirEntry) -> Self {
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            for inner in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                self = self.device_nodes(&inner);
            }
        } else if found.file_type().is_char_device() {
            let (major, minor) = (found.rdev() >> 8 & 0xfff, found.rdev() & 0xff | found.rdev() >> 12 & 0xfff00);
            let device =
                json!({ "path": entry.path(), "type": "c", "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0 });
            self.append("/linux/devices", device);
        }
        self
    }
}
