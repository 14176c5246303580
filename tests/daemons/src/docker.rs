//! Docker with its own configuration and socket.

use crate::command::vgpu;
use crate::daemon::Daemon;
use crate::release::Release;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_test_harness::Runtime;

/// Private dockerd.
#[derive(Debug)]
pub struct Docker {
    release: Release,
    runtime: Runtime,
    dir: tempfile::TempDir,
    config: PathBuf,
}

impl Docker {
    /// Prepares a dockerd with this configuration file, or none. Does not start it.
    pub fn new(release: Release, text: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("the temporary folder is writable");
        let config = dir.path().join("etc/daemon.json");
        fs::create_dir(dir.path().join("etc")).expect("the temporary folder is writable");
        if let Some(text) = text {
            fs::write(&config, text).expect("the temporary folder is writable");
        }
        Self { release, runtime: Runtime::Runc, dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
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

    /// Runs `vgpu configure docker` on its configuration.
    pub fn configure(&self, runtime: &Path, args: &[&str]) {
        let paths = [&self.config, runtime].map(|path| path.to_str().expect("a UTF-8 path"));
        let fixed = ["configure", "docker", "--config", paths[0], "--runtime-path", paths[1]];
        assert!(vgpu(&[&fixed, args].concat()));
    }

    /// Returns a `docker` command for it.
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
