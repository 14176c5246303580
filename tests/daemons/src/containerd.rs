//! containerd.

use crate::{Daemon, Release, run, vgpu};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml_edit::DocumentMut;
use vgpu_test_harness::Runtime;

/// A containerd with a configuration of its own.
#[derive(Debug)]
pub struct Containerd {
    release: Release,
    runtime: Runtime,
    dir: tempfile::TempDir,
    config: PathBuf,
}

impl Containerd {
    /// With a configuration file; not started.
    pub fn new(release: Release, text: &str) -> Self {
        let dir = tempfile::tempdir().expect("it can be written");
        let config = dir.path().join("etc/config.toml");
        fs::create_dir_all(config.parent().expect("it can be written")).expect("it can be written");
        fs::write(&config, text).expect("it can be written");
        Self { release, runtime: Runtime::Runc, dir, config }
    }

    /// The same, where containers are made by this low-level runtime.
    pub fn with_runtime(self, runtime: Runtime) -> Self {
        Self { runtime, ..self }
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// `vgpu configure containerd` for it.
    pub fn configure(&self, runtime: &Path, args: &[&str]) {
        let paths = [&self.config, runtime].map(|path| path.to_str().expect("a plain path"));
        let fixed = ["configure", "containerd", "--config", paths[0], "--runtime-path", paths[1]];
        assert!(vgpu(&[&fixed, args].concat()));
    }

    /// The whole configuration as containerd itself understands it.
    pub fn dump(&self) -> DocumentMut {
        let text = run(self.release.command("containerd").arg("--config").arg(&self.config).args(["config", "dump"]));
        text.parse().expect("containerd writes TOML")
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    /// Its client.
    pub fn ctr(&self) -> Command {
        let mut ctr = self.release.command("ctr");
        ctr.arg("--address").arg(self.socket());
        ctr
    }

    /// Starts it. From version 2 on it has a socket for NRI at a fixed place.
    pub fn start(&self) -> Daemon {
        let mut command = self.release.command_for(self.runtime, "containerd");
        command.arg("--config").arg(&self.config).arg("--address").arg(self.socket());
        command.arg("--root").arg(self.dir.path().join("root")).arg("--state").arg(self.dir.path().join("state"));
        Daemon::start_exclusive("containerd", &mut command, self.dir.path(), || {
            self.ctr().arg("version").output().is_ok_and(|output| output.status.success())
        })
    }
}
