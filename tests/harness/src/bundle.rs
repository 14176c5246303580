//! Builder for OCI bundles.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

/// OCI bundle in a temporary folder, which is removed on drop.
#[derive(Debug)]
pub struct Bundle {
    pub(crate) dir: TempDir,
    /// The folder of `config.json`, if that is not the temporary folder.
    pub(crate) placed: Option<PathBuf>,
    /// The id of its container, if that is not any.
    pub(crate) id: Option<String>,
    /// Contents of its `config.json`, written by [`Bundle::write`].
    pub spec: Value,
}

impl Default for Bundle {
    fn default() -> Self {
        Self::new()
    }
}

impl Bundle {
    /// Creates a root file system with busybox and a specification that runs `true` in it as root, with Docker's capabilities.
    ///
    /// # Panics
    /// There is no static busybox at `/bin/busybox`, or the temporary folder cannot be written.
    #[must_use]
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("vgpu-bundle-").unwrap();
        // Container processes of other users need access to the root file system.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let bin = dir.path().join("rootfs/bin");
        for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "usr/bin", "usr/local"] {
            fs::create_dir_all(dir.path().join("rootfs").join(folder)).unwrap();
        }
        fs::copy("/bin/busybox", bin.join("busybox")).expect("busybox-static is installed");
        let list = Command::new("/bin/busybox").arg("--list").output().unwrap();
        for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|applet| *applet != "busybox") {
            symlink("busybox", bin.join(applet)).unwrap();
        }
        Self { dir, placed: None, id: None, spec: specification() }
    }

    /// Returns the folder of the bundle.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.placed.as_deref().unwrap_or(self.dir.path())
    }

    /// Places the bundle in `folder`, as an engine does that chooses its path. The root file system stays where it is.
    ///
    /// # Panics
    /// The folder cannot be created.
    #[must_use]
    pub fn placed_in(mut self, folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        self.spec["root"]["path"] = json!(self.rootfs());
        self.placed = Some(folder.to_owned());
        self
    }

    /// Sets the id of its container, which annotations may have to name.
    #[must_use]
    pub fn with_id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// Returns the path of the root file system.
    #[must_use]
    pub fn rootfs(&self) -> PathBuf {
        self.dir.path().join("rootfs")
    }

    /// Returns the path of `config.json`.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path().join("config.json")
    }

    /// Sets the command.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.spec["process"]["args"] = json!(args);
        self
    }

    /// Sets a shell script as the command.
    #[must_use]
    pub fn shell(self, script: &str) -> Self {
        self.args(&["/bin/sh", "-c", script])
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.spec["annotations"][key] = json!(value);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.append("/process/env", json!(format!("{key}={value}")));
        self
    }

    /// Adds a bind mount.
    #[must_use]
    pub fn bind(mut self, source: &Path, destination: &str, options: &[&str]) -> Self {
        let options: Vec<&str> = ["rbind"].iter().chain(options).copied().collect();
        self.append("/mounts", json!({ "destination": destination, "type": "bind", "source": source, "options": options }));
        self
    }

    /// Adds a character device at `path`. Its numbers are those of the null device.
    #[must_use]
    pub fn device(mut self, path: &str) -> Self {
        self.append("/linux/devices", json!({ "path": path, "type": "c", "major": 1, "minor": 3, "fileMode": 0o666 }));
        self
    }

    /// Adds a hook at a stage.
    #[must_use]
    pub fn hook(mut self, stage: &str, program: &Path, args: &[&str]) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let args: Vec<String> = std::iter::once(name).chain(args.iter().map(|&arg| arg.to_owned())).collect();
        if self.spec.pointer(&format!("/hooks/{stage}")).is_none() {
            self.spec["hooks"][stage] = json!([]);
        }
        self.append(&format!("/hooks/{stage}"), json!({ "path": program, "args": args, "env": ["VGPU=1"], "timeout": 10 }));
        self
    }

    /// Makes the root file system read-only.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.spec["root"]["readonly"] = json!(true);
        self
    }

    /// Adds a capability to all sets.
    #[must_use]
    pub fn capability(mut self, name: &str) -> Self {
        for set in ["bounding", "effective", "permitted"] {
            self.append(&format!("/process/capabilities/{set}"), json!(name));
        }
        self
    }

    /// Runs the command as another user.
    #[must_use]
    pub fn user(mut self, uid: u32) -> Self {
        self.spec["process"]["user"] = json!({ "uid": uid, "gid": uid });
        self
    }

    /// Adds a user namespace whose root is the host's user `outer`, and gives the root file system to that user.
    ///
    /// # Panics
    /// The owner of the root file system cannot be changed.
    #[must_use]
    pub fn user_namespace(mut self, outer: u32) -> Self {
        self.append("/linux/namespaces", json!({ "type": "user" }));
        let map = json!([{ "containerID": 0, "hostID": outer, "size": 65536 }]);
        self.spec["linux"]["uidMappings"] = map.clone();
        self.spec["linux"]["gidMappings"] = map;
        let owner = format!("{outer}:{outer}");
        let given = Command::new("chown").args(["-hR", &owner]).arg(self.rootfs()).status().unwrap();
        assert!(given.success(), "chown the root file system");
        self
    }

    /// Writes a file in the root file system and creates its parent folders.
    ///
    /// # Panics
    /// The file cannot be written.
    #[must_use]
    pub fn file(self, path: &str, contents: &[u8]) -> Self {
        let path = self.rootfs().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        self
    }

    /// Creates a symbolic link in the root file system, replacing an existing entry.
    ///
    /// # Panics
    /// The link cannot be created.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        let this = self.without(path);
        let path = this.rootfs().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        this
    }

    /// Removes a file or folder from the root file system if it exists.
    ///
    /// # Panics
    /// It exists and cannot be removed.
    #[must_use]
    pub fn without(self, path: &str) -> Self {
        let path = self.rootfs().join(path.trim_start_matches('/'));
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
            Ok(_) => fs::remove_file(path).unwrap(),
            Err(_) => {}
        }
        self
    }

    /// Copies a program of the host to `path`, and the libraries that it is linked to.
    ///
    /// # Panics
    /// A file cannot be copied.
    #[must_use]
    pub fn program(self, program: &Path, path: &str) -> Self {
        let listed = Command::new("ldd").arg(program).output().unwrap();
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            self.copy(Path::new(library), library);
        }
        self.copy(program, path);
        self
    }

    fn copy(&self, from: &Path, to: &str) {
        let to = self.rootfs().join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }

    pub(crate) fn append(&mut self, list: &str, value: Value) {
        self.spec.pointer_mut(list).and_then(Value::as_array_mut).unwrap_or_else(|| panic!("no list {list}")).push(value);
    }

    /// Writes `config.json`, as an orchestrator does before it calls the runtime.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn write(&self) {
        fs::write(self.config(), serde_json::to_vec_pretty(&self.spec).unwrap()).unwrap();
    }
}

/// Returns the default specification. It has no resource limits and no cgroup namespace: small virtual machines may not permit these.
pub(crate) fn specification() -> Value {
    let capabilities = [
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FSETID",
        "CAP_FOWNER",
        "CAP_MKNOD",
        "CAP_NET_RAW",
        "CAP_SETGID",
        "CAP_SETUID",
        "CAP_SETFCAP",
        "CAP_SETPCAP",
        "CAP_NET_BIND_SERVICE",
        "CAP_SYS_CHROOT",
        "CAP_KILL",
        "CAP_AUDIT_WRITE",
    ];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/true"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "noNewPrivileges": false
        },
        "root": { "path": "rootfs", "readonly": false },
        "hostname": "test",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"] }
        ],
        "linux": {
            "devices": [],
            "namespaces": [{ "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" }, { "type": "network" }]
        },
        "annotations": {}
    })
}
