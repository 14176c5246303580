//! Docker.

use crate::{Daemon, Release, vgpu};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_test_harness::Runtime;

/// A dockerd with a configuration of its own.
#[derive(Debug)]
pub struct Docker {
    release: Release,
    runtime: Runtime,
    dir: tempfile::TempDir,
    config: PathBuf,
}

impl Docker {
    /// With a configuration file or none; not started.
    pub fn new(release: Release, text: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("it can be written");
        let config = dir.path().join("etc/daemon.json");
        fs::create_dir(dir.path().join("etc")).expect("it can be written");
        if let Some(text) = text {
            fs::write(&config, text).expect("it can be written");
        }
        Self { release, runtime: Runtime::Runc, dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
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

    /// `vgpu configure docker` for it.
    pub fn configure(&self, runtime: &Path, args: &[&str]) {
        let paths = [&self.config, runtime].map(|path| path.to_str().expect("a plain path"));
        let fixed = ["configure", "docker", "--config", paths[0], "--runtime-path", paths[1]];
        assert!(vgpu(&[&fixed, args].concat()));
    }

    /// Its client.
    pub fn docker(&self) -> Command {
        let mut docker = self.release.command("docker");
        docker.env("DOCKER_HOST", format!("unix://{}", self.path("d.sock").display()));
        docker.env("DOCKER_CONFIG", self.path("client"));
        docker
    }

    /// Starts it.
    pub fn start(&self) -> Daemon {
        let mut command = self.release.command_for(self.runtime, "dockerd");
        command.arg("--config-file").arg(&self.config);
        command.arg("--data-root").arg(self.path("data")).arg("--exec-root").arg(self.path("exec"));
        command.arg("--pidfile").arg(self.path("pid")).arg("-H").arg(format!("unix://{}", self.path("d.sock").display()));
        command.args(["--bridge", "none", "--iptables=false", "--ip6tables=false"]);
        Daemon::start(&mut command, self.dir.path(), || self.docker().arg("version").output().is_ok_and(|output| output.status.success()))
    }
}
