//! Private daemons for tests, each with its own folder, socket and image.

mod command;
mod containerd;
pub mod cri;
mod daemon;
mod docker;
mod image;
mod installation;
mod podman;
mod release;

pub use command::{call_log, output, run, script, stub_runtime, vgpu};
pub use containerd::Containerd;
pub use daemon::Daemon;
pub use docker::Docker;
pub use image::{import_tar, oci_archive};
pub use installation::{IS_LIMITED, IS_UNLIMITED, Installation, PROBE};
pub use podman::Podman;
pub use release::Release;
