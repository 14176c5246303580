//! Private daemons for tests, each with its own folder, socket and image.

mod containerd;
pub mod cri;
mod daemon;
mod docker;
mod image;
mod installation;
mod podman;

pub use containerd::Containerd;
pub use daemon::Daemon;
pub use docker::Docker;
pub use image::{import_tar, oci_archive};
pub use installation::{IS_LIMITED, IS_UNLIMITED, Installation, PROBE};
pub use podman::Podman;

use clap::Parser;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use vgpu_test_harness::Runtime;

/// Release of a daemon to test with.
#[derive(Debug, Clone)]
pub struct Release {
    /// Name for messages.
    pub name: String,
    /// Program folders that precede the system's; empty for the system's release.
    folders: Vec<PathBuf>,
}

impl Release {
    /// Returns the system's release of `program` and each unpacked one in `VGPU_TEST_RELEASES` (folders separated by colons, created by
    /// `tests/daemons/newer.sh`).
    pub fn all(program: &str) -> Vec<Self> {
        let mut out = vec![Self { name: "the system's".into(), folders: Vec::new() }];
        for root in std::env::split_paths(&std::env::var_os("VGPU_TEST_RELEASES").unwrap_or_default()) {
            let folders = vec![root.join("usr/bin"), root.join("usr/sbin")];
            if folders.iter().any(|folder| folder.join(program).exists()) {
                out.push(Self { name: root.display().to_string(), folders });
            }
        }
        out
    }

    /// Returns the low-level runtimes that it works with. The system's crun may not support the specification of a later release.
    pub fn runtimes(&self) -> Vec<Runtime> {
        if self.folders.is_empty() { vec![Runtime::Runc, Runtime::Crun] } else { vec![Runtime::Runc] }
    }

    /// Returns a command for a program of this release, with its folders on the PATH.
    pub fn command(&self, program: &str) -> Command {
        self.command_for(Runtime::Runc, program)
    }

    /// Returns a command for a program of this release in an environment that this low-level runtime supports.
    pub fn command_for(&self, runtime: Runtime, program: &str) -> Command {
        let system = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(self.folders.iter().cloned().chain(std::env::split_paths(&system)).chain(["/usr/sbin".into()]));
        let own = self.folders.iter().map(|folder| folder.join(program)).find(|path| path.exists());
        let mut command = runtime.command(&own.unwrap_or_else(|| program.into()));
        command.env("PATH", path.expect("folders without colons"));
        command
    }
}

/// Runs a command that must succeed and returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command and returns its output.
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs `vgpu ARGS…` in this process. Returns whether it succeeded.
pub fn vgpu(args: &[&str]) -> bool {
    let args = ["vgpu"].iter().chain(args);
    vgpu_cli::Cli::parse_from(args).run() == std::process::ExitCode::SUCCESS
}

/// Writes a stub of `vgpu-runtime` that records its arguments in [`call_log`] and executes runc. Returns its path.
pub fn stub_runtime(folder: &Path) -> PathBuf {
    let path = folder.join("vgpu-runtime");
    script(&path, &format!("echo \"$@\" >> {}\nexec runc \"$@\"", call_log(folder).display()));
    path
}

/// Writes an executable shell script.
pub fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("the folder is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the mode can be changed");
}

/// Returns the path of the log of the [`stub_runtime`] in `folder`.
pub fn call_log(folder: &Path) -> PathBuf {
    folder.join("calls")
}
