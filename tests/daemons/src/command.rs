//! Commands and scripts that the tests run.

use clap::Parser;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
