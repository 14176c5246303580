//! Containers that keep running when the runtime's command has ended.

use std::fs::{File, read_to_string};
use std::process::{Command, Stdio};

use vgpu_test_harness::Bundle;

/// Starts a bundle detached. `runtime` is a command line of a runtime without a subcommand. The PID of the container's first process is then
/// in the file `pid` of the bundle, and what the runtime and the container write to stderr in the file `log`.
///
/// # Errors
/// What the runtime wrote, if it failed.
///
/// # Panics
/// If the runtime cannot be started, or the bundle cannot be written.
pub fn start_detached(mut runtime: Command, bundle: &Bundle, id: &str) -> Result<(), String> {
    // vgpu-runtime adds its hooks to the bundle.
    bundle.write();
    runtime.args(["run", "--detach", "--pid-file"]).arg(bundle.path().join("pid"));
    runtime.arg("--bundle").arg(bundle.path()).arg(id);
    // A file, because a detached container keeps inherited pipes open.
    let log = bundle.path().join("log");
    let to = File::create(&log).expect("the log can be written");
    let status = runtime.stdin(Stdio::null()).stdout(Stdio::null()).stderr(to).status().expect("the runtime starts");
    if status.success() { Ok(()) } else { Err(format!("{status}: {}", read_to_string(&log).unwrap_or_default().trim())) }
}
