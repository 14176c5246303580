//! containerd with its own configuration and socket.

use crate::command::{run, vgpu};
use crate::daemon::Daemon;
use crate::release::Release;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml_edit::DocumentMut;
use vgpu_test_harness::Runtime;

/// Private containerd.
#[derive(Debug)]
pub struct Containerd {
    release: Release,
    runtime: Runtime,
    dir: tempfile::TempDir,
    config: PathBuf,
}

impl Containerd {
    /// Prepares a containerd with this configuration file. Does not start it.
    pub fn new(release: Release, text: &str) -> Self {
        let dir = tempfile::tempdir().expect("the temporary folder is writable");
        let config = dir.path().join("etc/config.toml");
        fs::create_dir_all(config.parent().expect("the temporary folder is writable")).expect("the temporary folder is writable");
        fs::write(&config, text).expect("the temporary folder is writable");
        Self { release, runtime: Runtime::Runc, dir, config }
    }

    /// Sets the low-level runtime. Default: runc.
    pub fn with_runtime(self, runtime: Runtime) -> Self {
        Self { runtime, ..self }
    }

    /// Returns its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Runs `vgpu configure containerd` on its configuration.
    pub fn configure(&self, runtime: &Path, args: &[&str]) {
        let paths = [&self.config, runtime].map(|path| path.to_str().expect("a UTF-8 path"));
        let fixed = ["configure", "containerd", "--config", paths[0], "--runtime-path", paths[1]];
        assert!(vgpu(&[&fixed, args].concat()));
    }

    /// Returns the effective configuration as printed by containerd.
    pub fn dump(&self) -> DocumentMut {
        let text = run(self.release.command("containerd").arg("--config").arg(&self.config).args(["config", "dump"]));
        text.parse().expect("containerd writes TOML")
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    /// Returns a `ctr` command for it.
    pub fn ctr(&self) -> Command {
        let mut ctr = self.release.command("ctr");
        ctr.arg("--address").arg(self.socket());
        ctr
    }

    /// Starts it. From version 2 on, its NRI socket has a fixed path, so only one can run at a time.
    pub fn start(&self) -> Daemon {
        let mut command = self.release.command_for(self.runtime, "containerd");
        command.arg("--config").arg(&self.config).arg("--address").arg(self.socket());
        command.arg("--root").arg(self.dir.path().join("root")).arg("--state").arg(self.dir.path().join("state"));
        Daemon::start_exclusive("containerd", &mut command, self.dir.path(), || {
            self.ctr().arg("version").output().is_ok_and(|output| output.status.success())
        })
    }
}
