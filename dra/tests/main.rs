//! vgpu on Kubernetes, tried with stand-ins for all of Kubernetes. One program, as linking each file's own would take longer than running it.

mod chart;
mod common;
mod crash_recovery;
mod enforcement;
mod manifests;
mod permissions;
mod plugin;
mod schedulers;
mod webhook;
