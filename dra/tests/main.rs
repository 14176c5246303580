//! Tests of vgpu on Kubernetes with stand-ins for the API server, the kubelet and the container runtime.
//!
//! All files are one test program, as linking one for each would take longer than running them.

mod chart;
mod common;
mod crash_recovery;
mod enforcement;
mod hostile_pods;
mod manifests;
mod permissions;
mod plugin;
mod schedulers;
mod webhook;
