//! Shares of GPUs in Kubernetes, placed by the stock scheduler.
//!
//! `vgpu-dra` is a kubelet plugin for dynamic resource allocation. [`discovery`] looks at what the machine has, [`devices`] makes of it what a
//! scheduler can choose from, and [`slices`] keeps the node's ResourceSlices that way. The kubelet finds us by [`kubelet`]; when it asks
//! ([`driver`]), a [`claim`]'s allocation becomes shares on the host and a [`cdi`] specification that the container runtime applies, all
//! noted in a [`checkpoint`] first. What is then enforced, and by whom, is not known here: that is `vgpu-runtime`'s and `vgpu-hook`'s.
//!
//! `vgpu-webhook` ([`webhook`]) turns the resources that HAMi's users write into such claims.

use std::process::ExitCode;

pub mod cdi;
pub mod checkpoint;
pub mod claim;
pub mod cluster;
pub mod devices;
pub mod discovery;
pub mod driver;
pub mod health;
pub mod kubelet;
pub mod options;
pub mod proto;
pub mod quantity;
pub mod service;
pub mod slices;
pub mod storage;
pub mod webhook;

/// The driver's name, which is also the domain of its devices' attributes and capacities.
pub const DRIVER: &str = "gpu.vgpu";

/// Says something in the log, which is standard error, as the program called `name`.
pub fn say(name: &str, line: &str) {
    eprintln!("{name}: {line}");
}

/// Runs a program to its end; a failure is said and becomes its exit status.
pub fn main(name: &str, program: impl Future<Output = Result<(), String>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(program)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(name, &error);
            ExitCode::FAILURE
        }
    }
}
