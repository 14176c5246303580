//! Daemons of one test's own: a folder, a socket, an image, and an end.

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

/// A release of a daemon to test with.
#[derive(Debug, Clone)]
pub struct Release {
    /// For messages.
    pub name: String,
    /// Its folders of programs, to go before the system's.
    folders: Vec<PathBuf>,
}

impl Release {
    /// The system's `program`, and that of each unpacked release in `VGPU_TEST_RELEASES` (folders separated by colons,
    /// as `tests/daemons/newer.sh` makes them).
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

    /// The low-level runtimes that it can work with: the system's crun may not know the specification of a later release.
    pub fn runtimes(&self) -> Vec<Runtime> {
        if self.folders.is_empty() { vec![Runtime::Runc, Runtime::Crun] } else { vec![Runtime::Runc] }
    }

    /// A program of this release, which finds its companions there, too.
    pub fn command(&self, program: &str) -> Command {
        self.command_for(Runtime::Runc, program)
    }

    /// The same, where this low-level runtime can work.
    pub fn command_for(&self, runtime: Runtime, program: &str) -> Command {
        let system = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(self.folders.iter().cloned().chain(std::env::split_paths(&system)).chain(["/usr/sbin".into()]));
        let own = self.folders.iter().map(|folder| folder.join(program)).find(|path| path.exists());
        let mut command = runtime.command(&own.unwrap_or_else(|| program.into()));
        command.env("PATH", path.expect("folders without colons"));
        command
    }
}

/// Runs a command that must succeed, and gives what it printed.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command.
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs `vgpu ARGS…`.
pub fn vgpu(args: &[&str]) -> bool {
    let args = ["vgpu"].iter().chain(args);
    vgpu_cli::Cli::parse_from(args).run() == std::process::ExitCode::SUCCESS
}

/// A runtime that notes how it was called and then is runc, for tests of who calls which.
pub fn stub_runtime(folder: &Path) -> PathBuf {
    let path = folder.join("vgpu-runtime");
    script(&path, &format!("echo \"$@\" >> {}\nexec runc \"$@\"", call_log(folder).display()));
    path
}

/// Writes a shell script.
pub fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("the folder can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// The notes of the [`stand_in`] in `folder`.
pub fn call_log(folder: &Path) -> PathBuf {
    folder.join("calls")
}
